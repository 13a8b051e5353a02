// SPDX-License-Identifier: BSD-2-Clause

// Package model is the data path's pacing rule in Go, slow and obvious: the yardstick that the BPF program is tested
// against, and the place to try a change of the rule. [Path.Enqueue] is the whole of it.
//
// # The question
//
// A packet's departure is decided once, when it is enqueued; there is no queue to change one's mind in. A rule that gives
// each packet the earlier of two clocks, that of the whole line (a FIFO) and that of its flow's guarantee, promises the
// same milliseconds twice: to those who booked them from the leftover, and to those who come later with a guarantee.
// Simulated at 40 Mbit/s, 32 TCP flows that start together leave at 2.6 times the rate in 10 ms and 1.17 times in
// 100 ms, and a UDP flood takes 1.7 times its share from 4 TCP flows. Bounding the debt afterwards helps neither.
//
// # The line is a calendar
//
// Time is divided into ticks of about 1 ms, or four full packets at low rates, and each tick knows the bytes booked in
// it. A full tick takes nothing more, so no tick is sold twice, whatever the flow counts say and whether or not a
// controller lives. What overfills a tick is repaid from the first ticks with room, to the byte: a packet that starts in
// it and ends in the next, a boost, and what is put into a full tick where a short search finds none with room, which
// happens up to once the tick's size. A packet is booked in one of four ways, tried in this order:
//
//   - Boost. A flow that was not sending (its guarantee clock and its last departure are past) does not wait: its packet
//     leaves now, if it is no larger than a full packet and boosts take no more than a quarter of the tick. Handshakes,
//     pings, calls.
//   - Use it or lose it. Room in this tick is nobody's loss.
//   - Leftover. Room further out than that is for those who will come with a guarantee, as far as they will come. How
//     much they take is the mean demand of the last 64 ticks; what it leaves is the rate of the leftover clock. A packet
//     that this clock, with room there, lets leave before its guarantee does so.
//   - Guarantee. The first room at or after the flow's guarantee clock.
//
// # Details that matter
//
// Only backlogged flows count: those whose packet finds the guarantee clock or their last departure in the future. So
// trickles shrink nobody's guarantee, however many they are. A flow counts until the epoch after its last departure, not
// its last packet: one that waits long, because it is starved, must not drop out of the count that would help it.
//
// Times are compared, not ticks, and a leftover booking sets the guarantee clock back to the leftover clock, not to the
// packet's place in its tick. Otherwise every leftover packet would make its flow entitled again for a whole tick.
//
// Demand is what flows took by their guarantee, plus half of the guarantee that they lost because their ticks were full.
// Without the lost part the estimate confirms itself: TCP flows that are pushed aside by a UDP backlog send less, so less
// would be kept free for them. What stays idle says the opposite: while more than a quarter of a tick does, less demand
// is believed eight times as soon, and the leftover clock moves up by the idle part of each tick, so that flows which
// stop are soon replaced. The leftover clock never gets less than 1/128 of the line.
//
// A flow may fall two ticks behind its guarantee and gets that back; what it loses beyond that is demand, and gone.
//
// # What it cannot do
//
// What is booked stays booked. A UDP socket's 92 packets leave at the share of the moment in which they were sent: when
// other flows stop, the line is idle in part until they are gone; when others start, they wait for what was booked at the
// full rate, except for their first packet. Flows whose demand varies within that time cost a deep backlog up to 2 % of
// the line. A lower bandwidth holds for packets that come after it. Leftover is given in the order of arrival, as in any
// FIFO. It learns by ticks, and those are long at low rates: at 2 Mbit/s one is 34 ms, a socket buffer of UDP is half a
// second, and for the first seconds beside it TCP flows have 0.6 of their share; trickles that take half of the line wait.
//
// # What each part buys
//
// The worst of the scenarios in this package's tests, at 10, 40 and 200 Mbit/s: Jain's index over the flows that share
// the line, the part of the line that is used, and the largest part of its fair share that a flow gets.
//
//	                                                          Jain   used   share
//	the whole rule                                            0.98   0.98    1.2
//	all leftover at the first room, nothing kept free         0.24   0.99   10.9
//	what flows lose of their guarantee is not demand          0.35   0.99    3.8
//	flows may fall behind without limit                       0.35   0.99    3.8
//	demand smoothed over 16 ticks instead of 64               0.96   0.68    1.2
//	idle ticks count as slowly as others                      0.98   0.96    1.3
//	an idle line does not move the leftover clock             0.98   0.93    1.3
//	room in the present tick is not given to anyone           0.98   0.95    1.3
//	no boosts (and pings wait like everyone)                  0.67   0.67    2.4
//	every flow counts, not only backlogged ones               0.52   0.98    2.9
//	the controller's plan alone, without the live count       0.51   0.94    6.5
//	flows count to the epoch after their last arrival         0.97   0.93    1.2
//	leftover sets the guarantee clock to the place in a tick  0.97   0.94    1.3
//	what overfills ticks is not repaid                        0.94   1.28    2.4
package model
