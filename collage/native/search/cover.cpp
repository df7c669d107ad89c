// The walk of collage/search/dp.py: the same states in the same order, so that it finds the same cover.

#include "cover.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <vector>

namespace {

__extension__ typedef __int128 Weight;
using Words = std::vector<uint64_t>;

constexpr int kPlain = 0, kUnknown = -1;
// The weight of a layout transform that cannot be made. A cover weighs less, and 127 of these are no overflow.
constexpr Weight kNever = static_cast<Weight>(1) << 120;

Weight weight_of(const uint64_t *words) {
  return static_cast<Weight>((static_cast<unsigned __int128>(words[1]) << 64) | words[0]);
}

// A held value: the storage that it was written in or kUnknown, and a mask of other storages that it is wanted in.
struct Held {
  int32_t value, given;
  uint64_t wanted;

  bool operator==(const Held &other) const {
    return value == other.value && given == other.given && wanted == other.wanted;
  }
};

// Masks without zero words at their end, so that equal masks have equal words.
void trim(Words &mask) {
  while (!mask.empty() && mask.back() == 0) mask.pop_back();
}

void shift_right(Words &mask, int64_t by) {
  const size_t whole = static_cast<size_t>(by / 64);
  const int part = static_cast<int>(by % 64);
  if (whole >= mask.size()) {
    mask.clear();
    return;
  }
  const size_t left = mask.size() - whole;
  for (size_t i = 0; i < left; ++i) {
    uint64_t word = mask[i + whole] >> part;
    if (part && i + whole + 1 < mask.size()) word |= mask[i + whole + 1] << (64 - part);
    mask[i] = word;
  }
  mask.resize(left);
  trim(mask);
}

bool share_bits(const uint64_t *a, size_t count_a, const uint64_t *b, size_t count_b) {
  for (size_t i = 0; i < std::min(count_a, count_b); ++i)
    if (a[i] & b[i]) return true;
  return false;
}

void add_bits(Words &to, const uint64_t *from, size_t count) {
  if (to.size() < count) to.resize(count, 0);
  for (size_t i = 0; i < count; ++i) to[i] |= from[i];
}

int64_t trailing_ones(const Words &mask) {
  int64_t found = 0;
  for (uint64_t word : mask) {
    if (~word == 0) {
      found += 64;
      continue;
    }
    return found + __builtin_ctzll(~word);
  }
  return found;
}

// A loose candidate with nodes ahead: these nodes, and the nodes that it reaches.
struct Loose {
  Words nodes, reach;

  bool operator==(const Loose &other) const { return nodes == other.nodes && reach == other.reach; }
};

// Compares masks as the integers that they are.
int compare(const Words &a, const Words &b) {
  if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
  for (size_t i = a.size(); i-- > 0;)
    if (a[i] != b[i]) return a[i] < b[i] ? -1 : 1;
  return 0;
}

struct State {
  Words covered;
  std::vector<Loose> loose;
  std::vector<Held> held;
};

uint64_t mixed(uint64_t hash, uint64_t word) {
  hash ^= word + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
  return hash * 0xff51afd7ed558ccdULL;
}

uint64_t hash_of_nodes(const State &state) {
  uint64_t hash = state.covered.size();
  for (uint64_t word : state.covered) hash = mixed(hash, word);
  for (const Loose &each : state.loose) {
    for (uint64_t word : each.nodes) hash = mixed(hash, word);
    for (uint64_t word : each.reach) hash = mixed(hash, word + 1);
  }
  return hash;
}

uint64_t hash_of(const State &state) {
  uint64_t hash = hash_of_nodes(state);
  for (const Held &each : state.held) {
    const uint64_t pair = static_cast<uint64_t>(static_cast<uint32_t>(each.value)) << 32;
    hash = mixed(mixed(hash, pair | static_cast<uint32_t>(each.given)), each.wanted);
  }
  return hash;
}

bool same_nodes(const State &a, const State &b) { return a.covered == b.covered && a.loose == b.loose; }

// The cheapest known way into a state: the last option taken, and the way before it.
struct Way {
  Weight weight;
  int64_t option, before;
};

// Numbers of things by their hashes; the caller compares.
class Index {
 public:
  template <typename Same>
  int64_t find(uint64_t hash, Same same) const {
    if (slots_.empty()) return -1;
    for (size_t at = hash & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].number < 0) return -1;
      if (slots_[at].hash == hash && same(slots_[at].number)) return slots_[at].number;
    }
  }

  void add(uint64_t hash, int64_t number) {
    if (2 * (count_ + 1) > slots_.size()) grow();
    put(hash, number);
    ++count_;
  }

 private:
  struct Slot {
    uint64_t hash = 0;
    int64_t number = -1;
  };

  void put(uint64_t hash, int64_t number) {
    size_t at = hash & (slots_.size() - 1);
    while (slots_[at].number >= 0) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = {hash, number};
  }

  void grow() {
    std::vector<Slot> old(std::max<size_t>(16, 2 * slots_.size()));
    old.swap(slots_);
    for (const Slot &each : old)
      if (each.number >= 0) put(each.hash, each.number);
  }

  std::vector<Slot> slots_;
  size_t count_ = 0;
};

// The states at one position, in the order in which they were found.
struct Layer {
  std::vector<State> states;
  std::vector<Way> ways;
  Index index;
};

}  // namespace

struct collage_walk {
  explicit collage_walk(const collage_cover &problem) : cover(problem), layers(problem.positions + 1) {
    bound();
    layers[0].states.emplace_back();
    layers[0].ways.push_back({0, -1, -1});
  }

  void visit(int64_t at);

  const collage_cover cover;
  std::vector<Layer> layers;
  std::vector<Way> ways;  // of the states that were followed
  std::vector<Weight> share, before;
  int64_t at = 0, reached = 0;
  bool exact = true;

 private:
  // A lower bound on the cost of each position: its share of that option which is cheapest for each node.
  void bound() {
    share.assign(cover.positions, -1);
    for (int64_t p = 0; p < cover.positions; ++p) {
      for (int64_t o = cover.first[p]; o < cover.first[p + 1]; ++o) {
        const collage_option &option = cover.options[o];
        const uint64_t *mask = cover.words + option.mask;
        int64_t count = 0;
        for (int i = 0; i < option.mask_words; ++i) count += __builtin_popcountll(mask[i]);
        const Weight each = weight_of(option.weight) / count;
        for (int i = 0; i < option.mask_words; ++i)
          for (uint64_t word = mask[i]; word; word &= word - 1) {
            Weight &known = share[p + 64 * i + __builtin_ctzll(word)];
            if (known < 0 || each < known) known = each;
          }
      }
    }
    before.assign(1, 0);
    for (Weight &each : share) {
      each = std::max<Weight>(each, 0);
      before.push_back(before.back() + each);
    }
  }

  Weight covered_bound(const State &state) const {
    Weight sum = before[at];
    for (size_t i = 0; i < state.covered.size(); ++i)
      for (uint64_t word = state.covered[i]; word; word &= word - 1)
        sum += share[at + 64 * static_cast<int64_t>(i) + __builtin_ctzll(word)];
    return sum;
  }

  Weight cost(int32_t value, int32_t from, int32_t to) const {
    const collage_value &about = cover.values[value];
    return weight_of(cover.costs + 2 * (about.costs + from * about.storages + to));
  }

  std::vector<int64_t> undominated(const Layer &layer) const;
  Weight becoming(const std::vector<Held> &held, const std::vector<Held> &other) const;
  Weight becoming(int32_t value, int32_t given, uint64_t wanted, int32_t other_given, uint64_t other_wanted) const;
  bool joined(const State &state, const collage_option &option, std::vector<Loose> &next) const;
  bool transition(const State &state, const collage_option &option, int64_t then, std::vector<Held> &next,
                  Weight &extra) const;
  Held held_or_before(const State &state, const std::vector<Held> &now, int32_t value, size_t &place) const;
};

void collage_walk::visit(int64_t position) {
  at = position;
  Layer layer = std::move(layers[position]);
  layers[position] = Layer();
  if (!layer.states.empty()) reached = position;
  std::vector<int64_t> followed = undominated(layer);
  if (static_cast<int64_t>(followed.size()) > cover.most_states) {
    exact = false;
    std::vector<Weight> rank(layer.states.size());
    for (int64_t each : followed) rank[each] = layer.ways[each].weight - covered_bound(layer.states[each]);
    std::stable_sort(followed.begin(), followed.end(), [&](int64_t a, int64_t b) { return rank[a] < rank[b]; });
    followed.resize(cover.most_states);
  }
  State next;
  for (int64_t number : followed) {
    const State &state = layer.states[number];
    const Weight so_far = layer.ways[number].weight;
    const int64_t way = static_cast<int64_t>(ways.size());
    ways.push_back(layer.ways[number]);
    for (int64_t o = cover.first[position]; o < cover.first[position + 1]; ++o) {
      const collage_option &option = cover.options[o];
      const uint64_t *mask = cover.words + option.mask;
      if (share_bits(state.covered.data(), state.covered.size(), mask, option.mask_words)) continue;
      next.covered = state.covered;
      add_bits(next.covered, mask, option.mask_words);
      const int64_t step = trailing_ones(next.covered);
      next.loose.clear();
      if (!state.loose.empty() || option.reach_words) {
        if (!joined(state, option, next.loose)) continue;
        for (Loose &each : next.loose) {
          shift_right(each.nodes, step);
          shift_right(each.reach, step);
        }
        next.loose.erase(std::remove_if(next.loose.begin(), next.loose.end(),
                                        [](const Loose &each) { return each.nodes.empty(); }),
                         next.loose.end());
        std::sort(next.loose.begin(), next.loose.end(), [](const Loose &a, const Loose &b) {
          const int order = compare(a.nodes, b.nodes);
          return order ? order < 0 : compare(a.reach, b.reach) < 0;
        });
      }
      Weight extra = 0;
      next.held.clear();
      if (!state.held.empty() || option.has_ports)
        if (!transition(state, option, position + step, next.held, extra)) continue;
      shift_right(next.covered, step);
      const Weight weight = so_far + weight_of(option.weight) + extra;
      Layer &target = layers[position + step];
      const uint64_t hash = hash_of(next);
      const int64_t known = target.index.find(hash, [&](int64_t each) {
        return same_nodes(target.states[each], next) && target.states[each].held == next.held;
      });
      if (known < 0) {
        target.index.add(hash, static_cast<int64_t>(target.states.size()));
        target.states.push_back(next);
        target.ways.push_back({weight, o, way});
      } else if (weight < target.ways[known].weight) {
        target.ways[known] = {weight, o, way};
      }
    }
  }
}

// The states without those that the cheapest one with the same nodes covered can become at no more cost.
std::vector<int64_t> collage_walk::undominated(const Layer &layer) const {
  const int64_t count = static_cast<int64_t>(layer.states.size());
  std::vector<int64_t> kept;
  if (std::all_of(layer.states.begin(), layer.states.end(), [](const State &each) { return each.held.empty(); })) {
    kept.resize(count);
    std::iota(kept.begin(), kept.end(), 0);
    return kept;
  }
  Index groups;
  std::vector<int64_t> cheapest, group(count);
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t hash = hash_of_nodes(layer.states[i]);
    int64_t found =
        groups.find(hash, [&](int64_t g) { return same_nodes(layer.states[cheapest[g]], layer.states[i]); });
    if (found < 0) {
      found = static_cast<int64_t>(cheapest.size());
      groups.add(hash, found);
      cheapest.push_back(i);
    } else if (layer.ways[i].weight < layer.ways[cheapest[found]].weight) {
      cheapest[found] = i;
    }
    group[i] = found;
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t better = cheapest[group[i]];
    const std::vector<Held> &held = layer.states[better].held;
    if (better == i || layer.ways[better].weight + becoming(held, layer.states[i].held) > layer.ways[i].weight)
      kept.push_back(i);
  }
  return kept;
}

Weight collage_walk::becoming(const std::vector<Held> &held, const std::vector<Held> &other) const {
  Weight total = 0;
  size_t i = 0, j = 0;
  while (i < held.size() || j < other.size()) {
    const bool mine = j == other.size() || (i < held.size() && held[i].value <= other[j].value);
    const bool theirs = i == held.size() || (j < other.size() && other[j].value <= held[i].value);
    const int32_t value = mine ? held[i].value : other[j].value;
    const Held a = mine ? held[i++] : Held{value, kPlain, 0};
    const Held b = theirs ? other[j++] : Held{value, kPlain, 0};
    if (a == b) continue;
    if (a.given == kUnknown || b.given == kUnknown) return kNever;
    total += becoming(value, a.given, a.wanted, b.given, b.wanted);
    if (total >= kNever) return kNever;
  }
  return total;
}

Weight collage_walk::becoming(int32_t value, int32_t given, uint64_t wanted, int32_t other_given,
                              uint64_t other_wanted) const {
  const uint64_t available = wanted | uint64_t{1} << given, other_available = other_wanted | uint64_t{1} << other_given;
  Weight total = 0;
  for (int32_t storage = 0; storage < cover.values[value].storages; ++storage) {
    if (available >> storage & 1) continue;
    const Weight own = cost(value, given, storage);
    total += other_available >> storage & 1 ? own : std::max<Weight>(0, own - cost(value, other_given, storage));
  }
  return total;
}

// The loose candidates once the option is placed, at the same position. False when that closes a circle.
bool collage_walk::joined(const State &state, const collage_option &option, std::vector<Loose> &next) const {
  next = state.loose;
  if (!option.reach_words) return true;
  const uint64_t *mask = cover.words + option.mask;
  const uint64_t *own = cover.words + option.reaches;
  const Words first(own, own + option.reach_words);
  Loose made{Words(mask, mask + option.mask_words), first};
  for (const Loose &each : state.loose)
    if (share_bits(first.data(), first.size(), each.nodes.data(), each.nodes.size()))
      add_bits(made.reach, each.reach.data(), each.reach.size());
  if (share_bits(made.reach.data(), made.reach.size(), mask, option.mask_words)) return false;
  for (Loose &each : next)
    if (share_bits(each.reach.data(), each.reach.size(), mask, option.mask_words))
      add_bits(each.reach, made.reach.data(), made.reach.size());
  trim(made.nodes);
  trim(made.reach);
  next.insert(next.begin(), std::move(made));
  return true;
}

// The entry of a value in `now`, at `place`, or what holds for one that has no entry: then `place` is where it belongs.
Held collage_walk::held_or_before(const State &state, const std::vector<Held> &now, int32_t value,
                                  size_t &place) const {
  place = 0;
  while (place < now.size() && now[place].value < value) ++place;
  if (place < now.size() && now[place].value == value) return now[place];
  const int64_t ahead = cover.values[value].writer - at;
  const size_t word = static_cast<size_t>(std::max<int64_t>(ahead, 0) / 64);
  const bool done = ahead < 0 || (word < state.covered.size() && state.covered[word] >> (ahead % 64) & 1);
  return {value, done ? kPlain : kUnknown, 0};
}

// What a state holds after the option, and the weight of the layout transforms that this needs. False where one of them
// cannot be made.
bool collage_walk::transition(const State &state, const collage_option &option, int64_t then, std::vector<Held> &next,
                              Weight &extra) const {
  if (!option.has_ports) {
    for (const Held &each : state.held)
      if (cover.values[each.value].last >= then) next.push_back(each);
    return true;
  }
  next = state.held;
  const collage_port *port = cover.ports + option.port;
  const auto put = [&](size_t place, const Held &entry) {
    if (place < next.size() && next[place].value == entry.value)
      next[place] = entry;
    else
      next.insert(next.begin() + static_cast<std::ptrdiff_t>(place), entry);
  };
  size_t place = 0;
  for (int32_t i = 0; i < option.reads; ++i, ++port) {
    Held entry = held_or_before(state, next, port->value, place);
    if (entry.given == port->storage || entry.wanted >> port->storage & 1) continue;
    if (entry.given != kUnknown) extra += cost(port->value, entry.given, port->storage);
    if (extra >= kNever) return false;
    entry.wanted |= uint64_t{1} << port->storage;
    put(place, entry);
  }
  for (int32_t i = 0; i < option.writes; ++i, ++port) {
    Held entry = held_or_before(state, next, port->value, place);
    const collage_value &about = cover.values[port->value];
    if (about.is_output) entry.wanted |= uint64_t{1} << kPlain;
    entry.wanted &= ~(uint64_t{1} << port->storage);
    for (int32_t other = 0; other < about.storages; ++other)
      if (entry.wanted >> other & 1) extra += cost(port->value, port->storage, other);
    if (extra >= kNever) return false;
    entry.given = port->storage;
    put(place, entry);
  }
  next.erase(std::remove_if(next.begin(), next.end(),
                            [&](const Held &each) {
                              return cover.values[each.value].last < then || (each.given == kPlain && !each.wanted);
                            }),
             next.end());
  return true;
}

extern "C" {

collage_walk *collage_walk_begin(const collage_cover *cover) {
  try {
    return new collage_walk(*cover);
  } catch (const std::bad_alloc &) {
    return nullptr;
  }
}

int collage_walk_on(collage_walk *walk) {
  try {
    if (walk->at < walk->cover.positions) {
      walk->visit(walk->at);
      ++walk->at;
    }
    return walk->at == walk->cover.positions;
  } catch (const std::bad_alloc &) {
    return -1;
  }
}

int64_t collage_walk_found(const collage_walk *walk, int64_t *options, int64_t most, int *exact, int64_t *reached) {
  *exact = walk->exact;
  *reached = walk->reached;
  const Layer &last = walk->layers.back();
  for (size_t i = 0; i < last.states.size(); ++i) {
    const State &state = last.states[i];
    if (!state.covered.empty() || !state.loose.empty() || !state.held.empty()) continue;
    int64_t count = 0;
    for (Way way = last.ways[i]; way.option >= 0 && count < most; way = walk->ways[static_cast<size_t>(way.before)])
      options[count++] = way.option;
    return count;
  }
  return -1;
}

void collage_walk_end(collage_walk *walk) { delete walk; }

}  // extern "C"
