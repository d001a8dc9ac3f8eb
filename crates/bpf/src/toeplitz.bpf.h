// The Toeplitz hash of a NIC, by table: wire::toeplitz::Table has the same.
#pragma once

#include <linux/types.h>

#define INLINE static __attribute__((always_inline)) inline

enum { INPUT_BYTES = 36 };

// What each value of each byte of the input adds to the hash.
const volatile __u32 shares[INPUT_BYTES * 256] = {};

// What `count` bytes add that stand at `at` of the input; both are known when this is compiled.
INLINE __u32 sum(const __u8 *bytes, __u32 at, __u32 count) {
  __u32 hash = 0;
#pragma clang loop unroll(full)
  for (__u32 n = 0; n < count; n++)
    hash ^= shares[(at + n) * 256 + bytes[n]];
  return hash;
}
