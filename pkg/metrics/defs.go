// SPDX-License-Identifier: BSD-2-Clause

package metrics

// kind is the type of a metric, in Prometheus' words.
type kind string

const (
	gauge     kind = "gauge"
	counter   kind = "counter"
	histogram kind = "histogram"
)

// definition is what a metric is called and means.
type definition struct {
	name   string
	kind   kind
	labels []string
	help   string
}

// definitions are all metrics.
func definitions() []definition {
	device := []string{"device"}
	tin := []string{"device", "tin"}
	queue := []string{"device", "queue"}
	return []definition{
		{"cakectl_build_info", gauge, []string{"version", "revision", "goversion"},
			"Always 1; the labels tell the version of cakectl, the revision it was built from, and the version of Go."},

		{"cakectl_interface_info", gauge, []string{"device", "attach", "root_qdisc"},
			"Always 1 for an attached device; the labels tell the egress hook (tcx or clsact) and the root qdisc."},
		{"cakectl_interface_enforcing", gauge, device,
			"Whether every part that holds the rates is in its place, as the kernel has it: 1 or 0."},
		{"cakectl_bandwidth_limit_bytes_per_second", gauge, device,
			"Rate that the whole device is shaped to; +Inf is unlimited."},
		{"cakectl_tx_queues", gauge, device,
			"Transmit queues of the device."},
		{"cakectl_active_tx_queues", gauge, tin,
			"Transmit queues on which the tin is active."},
		{"cakectl_active_flows", gauge, tin,
			"Active flows of the tin."},

		{"cakectl_tin_guaranteed_bytes_per_second", gauge, tin,
			"Rate that the tin is guaranteed, and up to which it has priority; +Inf is unlimited."},
		{"cakectl_tin_ceiling_bytes_per_second", gauge, tin,
			"Hard cap of the tin; +Inf is none."},
		{"cakectl_queue_effective_bytes_per_second", gauge, []string{"device", "queue", "tin"},
			"Rate that the controller gave the tin on a transmit queue, where it is in the plan; +Inf is unlimited."},
		{"cakectl_tin_bytes_total", counter, tin,
			"Bytes accepted, as on the line: each GSO segment with its headers, and with what --overhead says."},
		{"cakectl_tin_packets_total", counter, tin,
			"Packets (GSO segments) accepted."},
		{"cakectl_tin_delayed_packets_total", counter, tin,
			"Packets (GSO segments) given a departure time in the future."},
		{"cakectl_tin_ecn_marked_packets_total", counter, tin,
			"Packets (GSO segments) given a CE mark: their forwarded flow waited too long."},
		{"cakectl_tin_dropped_packets_total", counter, []string{"device", "tin", "reason"},
			"Packets (GSO segments) dropped."},
		{"cakectl_tin_dropped_bytes_total", counter, []string{"device", "tin", "reason"},
			"Bytes dropped, as on the line."},
		{"cakectl_tin_sojourn_seconds", histogram, tin,
			"Time from a packet's (GSO segment's) enqueue to its departure. Each bucket is twice the one before, so a quantile is known to a factor of two; what status shows is the bucket's upper bound."},
		{"cakectl_queue_bytes_total", counter, queue,
			"Bytes accepted for a transmit queue, as on the line."},
		{"cakectl_queue_packets_total", counter, queue,
			"Packets (GSO segments) accepted for a transmit queue."},

		{"cakectl_queue_foreseen_packets_total", counter, []string{"device", "result"},
			"Packets, as enqueued, whose transmit queue was checked: result is match where it was the one that had been foreseen, else mismatch. Counts only while --check-queues or doctor check."},

		{"cakectl_controller_events_total", counter, device,
			"Events of the data path that the controller answered."},
		{"cakectl_controller_recomputes_total", counter, []string{"device", "trigger"},
			"Times that the controller computed the effective rates anew."},
		{"cakectl_controller_rate_writes_total", counter, device,
			"Effective rates that the controller wrote."},
		{"cakectl_controller_unchanged_recomputes_total", counter, device,
			"Recomputes that had nothing to write."},
		{"cakectl_controller_reaction_seconds", histogram, device,
			"Time from an event to the rates that it led to being written, in this process."},
		{"cakectl_controller_unanswered_seconds", gauge, device,
			"Age of the oldest event of the data path that the controller has not answered; 0 where it answered all."},
		{"cakectl_drift_detected_total", counter, device,
			"Times that the controller, in this process, found the device changed by others."},
		{"cakectl_drift_repaired_total", counter, device,
			"Times that it put back what others had changed."},
		{"cakectl_rate_changes_total", counter, []string{"device", "source", "result"},
			"Changes of the configuration asked of this process: source is cli, api or file, result is ok, invalid or failed."},

		{"cakectl_config_last_reload_successful", gauge, nil,
			"Whether the configuration file was without mistakes when serve read it last: 1 or 0."},
		{"cakectl_scrape_errors_total", counter, nil,
			"Scrapes that could not read the state of all devices."},
	}
}
