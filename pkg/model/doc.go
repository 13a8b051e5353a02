// SPDX-License-Identifier: BSD-2-Clause

// Package model is the data path's rule in Go, slow and obvious: the yardstick that the BPF program
// is tested against, and the place to try a change of the rule. [Path.Enqueue] is the whole of it.
// Its files are the headers under bpf/: calendar.go is calendar.h, and so on. The arithmetic is the
// program's wherever rounding decides about a departure; the rest is what comes to mind first: maps
// instead of rings, 64 bits, no CPU but one. The tests of pkg/loader give both the same packets and
// want the same answers. What is looked up before the rule begins is not here: a packet's queue, its
// tin, its hash; nor is fairness between hosts.
//
// # The question
//
// A packet's departure is decided once, when it is enqueued; there is no queue to change one's mind
// in. A rule that gives each packet the earlier of two clocks, that of the whole line (a FIFO) and
// that of its flow's guarantee, promises the same milliseconds twice: to those who booked them from
// the leftover, and to those who come later with a guarantee. Simulated at 40 Mbit/s, 32 TCP flows
// that start together leave at 2.6 times the rate in 10 ms and 1.17 times in 100 ms, and a UDP flood
// takes 1.7 times its share from 4 TCP flows. Bounding the debt afterwards helps neither.
//
// # The line is a calendar
//
// Time is divided into ticks of about 1 ms, or two full packets at low rates, and each tick knows the
// bytes booked in it. A full tick takes nothing more, so no tick is sold twice, whatever the flow
// counts say and whether or not a controller lives. What overfills a tick is repaid from later ticks
// with room, to the byte: a packet that starts in it and ends in the next, a boost, and what is put
// into a full tick where a short search finds none with room, or because it is due beside lumps. A packet is booked in one of four ways,
// tried in this order:
//
//   - Boost. A flow that was not sending (its guarantee clock and its last departure are past) does
//     not wait: its packet leaves now, if it is no larger than a full packet and boosts take no more
//     than a quarter of the line. Handshakes, pings, calls.
//   - Use it or lose it. With no more than two packets ahead of it in this tick and the next, the
//     line is about to idle: a flow that has not booked far ahead may have what nobody else wants.
//   - Leftover. Room further out is for those who will come with a guarantee, as far as they will
//     come. How much they take is the mean demand of the last 64 ticks; what it leaves is the rate of
//     the leftover clock. A packet that this clock, with room there, lets leave before its guarantee
//     does so. Where one tin has the line to itself and the line has idled within 16 ticks, a flow
//     that has not booked far ahead need not wait for that clock.
//   - Guarantee. The first room at or after the flow's guarantee clock. A flow that has not booked far
//     ahead may be a packet, or a tick, ahead of that: TCP sends a packet when another leaves, and
//     would otherwise leave gaps between those of its flows, which others would fill.
//
// # Details that matter
//
// A lump is a packet that fills far more than is booked at a time otherwise: more than two full
// packets and a quarter of a tick. A guarantee that is due in a tick before the end of what lumps have
// filled is booked there, though the tick may be full: a TCP flow with two small packets in the device
// would else get those two for each lump. Only lumps look for room then. It is closed while the first
// tick with room is more than 128 ticks off, or more than 32 ticks' worth is not repaid yet: the line
// would run above its rate for too long.
//
// Only backlogged flows count: those whose packet finds the guarantee clock or their last departure
// in the future, after they have sent more than four full packets in that state. So trickles shrink
// nobody's guarantee, however many they are, and neither do connections of a few packets. A flow counts until
// its last departure, not its last packet: one that waits long, because it is starved, must not drop
// out of the count that would help it. After that it counts for as long as it has counted before, up
// to a bound: a flow that lasts may pause, one of a few packets is gone.
//
// Times are compared, not ticks, and a leftover booking sets the guarantee clock back to the
// leftover clock, not to the packet's place in its tick. Otherwise every leftover packet would make
// its flow entitled again for a whole tick.
//
// Demand is what flows would get by their guarantees: what they booked by it, of a leftover booking
// the part that the guarantee would have served in the time since the flow's last one, and half of
// what they lost because their ticks were full, or because their clock stood still while they waited.
// Without these parts the estimate confirms itself: TCP flows that are pushed aside by a UDP backlog
// send less, so less would be kept free for them; and what equal UDP senders once took from the
// leftover they would keep, some more and some less. What stays idle says the opposite: while more
// than a quarter of a tick does, less demand is believed eight times as soon, and the leftover clock
// stops waiting at the end of a tick of which more than 1/32 does, so that flows which stop are soon
// replaced. The leftover clock never gets less than 1/128 of the line.
//
// A flow may fall two ticks and the time of a packet behind its guarantee and gets that back; what
// it loses beyond that is demand, and gone.
//
// # What it cannot do
//
// What is booked stays booked. A UDP socket's 92 packets leave at the share of the moment in which
// they were sent: when other flows stop, the line is idle in part until they are gone; when others
// start, they wait for what was booked at the full rate, except for their first packet. A lower
// bandwidth holds for packets that come after it. Leftover is given in the order of arrival, as in
// any FIFO. The calendar learns by ticks, and those are long at low rates: at 2 Mbit/s one is 17 ms.
// The scenarios in this package's tests say what comes of it.
package model
