# To be sourced at the repository's root: make_venv EXTRA installs Collage with that extra into .venv, if need be.

# The version of an interpreter, such as 3.12; nothing where it is not there.
version_of() {
  "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || :
}

make_venv() {
  local extra=$1 python=${COLLAGE_PYTHON:-python3} mark wanted version
  mark=.venv/.collage-$extra
  wanted=$(cat pyproject.toml setup.py collage/native/*.cpp collage/native/*.h collage/native/{kernels,search}/*.{cpp,h} | cksum)
  version=$(version_of .venv/bin/python)
  # What an interrupt or a system without the module venv has left has no pip.
  if ! .venv/bin/python -m pip --version >/dev/null 2>&1 ||
    { [ -n "${COLLAGE_PYTHON:-}" ] && [ "$(version_of "$python")" != "$version" ]; }; then
    version=$(version_of "$python")
    case $version in
    3.10 | 3.11 | 3.12 | 3.13) ;;
    *)
      echo "Collage needs Python 3.10 to 3.13, and $python is ${version:-not there}: name another one with COLLAGE_PYTHON." >&2
      return 1
      ;;
    esac
    echo "== making .venv with Python $version" >&2
    rm -rf .venv
    "$python" -m venv .venv || return 1
  fi
  if [ "$(cat "$mark" 2>/dev/null)" != "$wanted" ]; then
    echo "== installing Collage with [$extra] into .venv (a minute or two the first time)" >&2
    PIP_DISABLE_PIP_VERSION_CHECK=1 .venv/bin/python -m pip install -qq --editable ".[$extra]" || return 1
    .venv/bin/python -m compileall -q collage # where PYTHONDONTWRITEBYTECODE is set, as in many containers
    echo "$wanted" >"$mark"
  fi
}
