// SPDX-License-Identifier: BSD-2-Clause

// Package rates holds what cakectl knows about rates, without any kernel in it:
//
//   - [Rate], in bits per second, and [Value], what a user writes ("2.5gbit", "50%", "unlimited");
//   - the data path's fixed point for a rate, [NsPerByteQ24];
//   - [Plan], the controller's pure function: from the configuration and the active
//     (queue, tin) cells to the guaranteed rate of each cell.
package rates
