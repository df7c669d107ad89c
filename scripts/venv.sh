# To be sourced at the repository's root: make_venv EXTRA installs Collage with that extra into .venv, if need be.

make_venv() {
  local extra=$1 python=${COLLAGE_PYTHON:-python3} mark wanted
  mark=.venv/.collage-$extra
  wanted=$(cat pyproject.toml setup.py collage/native/core.* collage/native/kernels/* | cksum)
  if [ ! -x .venv/bin/python ]; then
    echo "== making .venv with $("$python" --version)" >&2
    rm -rf .venv
    "$python" -m venv .venv || return 1
  fi
  if [ "$(cat "$mark" 2>/dev/null)" != "$wanted" ]; then
    echo "== installing collage[$extra] into .venv (a minute or two the first time)" >&2
    PIP_DISABLE_PIP_VERSION_CHECK=1 .venv/bin/python -m pip install -qq --editable ".[$extra]" || return 1
    .venv/bin/python -m compileall -q collage # where PYTHONDONTWRITEBYTECODE is set, as in many containers
    echo "$wanted" >"$mark"
  fi
}
