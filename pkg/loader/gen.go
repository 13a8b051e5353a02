// SPDX-License-Identifier: BSD-2-Clause

package loader

// The second command builds the check of queue foresight; the others, for this package's tests, the
// data path with an injected clock, and its framing alone.

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -tags linux -output-stem datapath -type device_config -type xps_entry -type shard -type device_state -type calendar -type tin_counters -type queue_counters -type foresight_counters -type queue_decision -type controller_stats -type event -type bypass_reason -type event_kind -type isolation -type framing dataPath ../../bpf/cakectl.bpf.c -- -O2 -Wall -Wextra -Werror -Wno-unused-parameter -mcpu=v3
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -tags linux -output-stem queuecheck -no-global-types queueCheck ../../bpf/check.bpf.c -- -O2 -Wall -Wextra -Werror -Wno-unused-parameter -mcpu=v3
//go:generate ../../scripts/build-bpf ../../bpf/test/inject.bpf.c testdata/inject_bpfel.o
//go:generate ../../scripts/build-bpf ../../bpf/test/framing.bpf.c testdata/framing_bpfel.o
