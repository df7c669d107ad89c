// Which attributes the descriptors of cuDNN have, as far as they are used here: type, and how many elements. What is not
// in these tables is refused.
#pragma once
#include <map>

namespace rules {

enum Type {
  HANDLE = 0, DATA_TYPE = 1, BOOLEAN = 2, INT64 = 3, FLOAT = 4, DOUBLE = 5, VOID_PTR = 6, CONVOLUTION_MODE = 7, HEUR_MODE = 8,
  KNOB_TYPE = 9, NAN_PROPAGATION = 10, NUMERICAL_NOTE = 11, POINTWISE_MODE = 14, DESCRIPTOR = 15, REDUCTION = 18,
  RESAMPLE_MODE = 21, PADDING_MODE = 22, CHAR = 24, FRACTION = 26, NORM_MODE = 27, NORM_PHASE = 28,
};
inline int size_of(int type) {
  switch (type) {
    case BOOLEAN: case CHAR: return 1;
    case HANDLE: case INT64: case DOUBLE: case VOID_PTR: case DESCRIPTOR: return 8;
    case FRACTION: return 16;
  }
  return 4;
}

struct Rule {
  int type;
  bool required = true, many = false;
};
using Table = std::map<int, Rule>;

// By kind of descriptor, and by attribute.
inline const std::map<int, Table>& all() {
  static const std::map<int, Table> found{
      {0,  // pointwise
       {{0, {POINTWISE_MODE}}, {1, {DATA_TYPE}}, {2, {NAN_PROPAGATION, false}}, {3, {DOUBLE, false}}, {4, {DOUBLE, false}},
        {5, {DOUBLE, false}}, {6, {DOUBLE, false}}, {7, {DOUBLE, false}}, {8, {DOUBLE, false}}}},
      {1,  // convolution
       {{100, {DATA_TYPE}}, {101, {CONVOLUTION_MODE}}, {102, {INT64, true, true}}, {103, {INT64, true, true}},
        {104, {INT64, true, true}}, {105, {INT64, true, true}}, {106, {INT64}}}},
      {2, {{1300, {DESCRIPTOR}}, {1301, {INT64}}}},                                      // engine
      {3, {{300, {DESCRIPTOR}}, {302, {DESCRIPTOR, false, true}}}},                      // its configuration
      {4, {{200, {HEUR_MODE}}, {201, {DESCRIPTOR}}}},                                    // heuristic
      {5, {{400, {HANDLE}}, {401, {DESCRIPTOR, false}}, {405, {CHAR, false, true}}}},    // execution plan
      {7, {{600, {KNOB_TYPE}}, {601, {INT64}}}},                                         // chosen knob
      {10, {{700, {FLOAT}}, {701, {FLOAT}}, {702, {DESCRIPTOR}}, {703, {DESCRIPTOR}}, {704, {DESCRIPTOR}}, {705, {DESCRIPTOR}}}},
      {12, {{706, {FLOAT}}, {707, {FLOAT}}, {708, {DESCRIPTOR}}, {709, {DESCRIPTOR}}, {710, {DESCRIPTOR}}, {711, {DESCRIPTOR}}}},
      {13, {{750, {DESCRIPTOR}}, {751, {DESCRIPTOR}}, {752, {DESCRIPTOR, false}}, {753, {DESCRIPTOR}}}},
      {15, {{800, {HANDLE}}, {801, {DESCRIPTOR, true, true}}}},                          // operation graph
      {16, {{1000, {INT64, true, true}}, {1001, {VOID_PTR, true, true}}, {1003, {VOID_PTR}}}},
      {17,  // tensor
       {{900, {INT64}}, {901, {DATA_TYPE}}, {902, {INT64, true, true}}, {903, {INT64, true, true}}, {906, {INT64}},
        {907, {BOOLEAN, false}}, {908, {BOOLEAN, false}}}},
      {18, {{1500, {DATA_TYPE}}}},
      {19, {{1520, {DESCRIPTOR}}, {1521, {DESCRIPTOR}}, {1522, {DESCRIPTOR}}, {1523, {DESCRIPTOR}}}},
      {21, {{1600, {REDUCTION}}, {1601, {DATA_TYPE}}}},
      {22, {{1610, {DESCRIPTOR}}, {1611, {DESCRIPTOR}}, {1612, {DESCRIPTOR}}}},
      {24,  // resampling
       {{1700, {RESAMPLE_MODE}}, {1701, {DATA_TYPE}}, {1702, {INT64}}, {1703, {FRACTION, true, true}},
        {1704, {FRACTION, true, true}}, {1705, {FRACTION, true, true}}, {1706, {FRACTION, true, true}},
        {1707, {NAN_PROPAGATION}}, {1708, {PADDING_MODE}}}},
      {25, {{1710, {DESCRIPTOR}}, {1711, {DESCRIPTOR}}, {1713, {DOUBLE}}, {1714, {DOUBLE}}, {1716, {DESCRIPTOR}}}},
      {29,  // normalisation
       {{2000, {NORM_MODE}}, {2001, {NORM_PHASE}}, {2002, {DESCRIPTOR}}, {2005, {DESCRIPTOR}}, {2006, {DESCRIPTOR, false}},
        {2007, {DESCRIPTOR}}, {2013, {DESCRIPTOR}}}},
      {38, {{2701, {HANDLE, false}}, {2702, {CHAR, false, true}}}},                      // description of a device
      {41, {{2800, {DESCRIPTOR}}, {2801, {DESCRIPTOR}}, {2802, {DESCRIPTOR}}, {2803, {DESCRIPTOR}}, {2805, {DESCRIPTOR}}}},
      {45, {{3100, {DESCRIPTOR}}, {3101, {DESCRIPTOR}}}},
  };
  return found;
}

}  // namespace rules
