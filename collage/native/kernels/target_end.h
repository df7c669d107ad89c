// The end of what lanes.h, avx512.h or table_lanes.h begins: Clang has no instruction sets "from here on" without an end.

#ifdef __clang__
#pragma clang attribute pop
#endif
