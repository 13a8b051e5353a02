// SPDX-License-Identifier: BSD-2-Clause

package api

import (
	"context"
	"net/http"
	"time"

	"github.com/cakectl/cakectl/pkg/config"
)

// AllDevices stands for the daemon that serves many, where a device is named otherwise: no device can
// have this name.
const AllDevices = ":all"

// Host is a daemon that serves many devices, each on a socket of its own beside this one.
type Host interface {
	// Devices names those that are served, attached or not.
	Devices() []string
	// Attach takes on one more.
	Attach(ctx context.Context, spec config.Spec) (Outcome, error)
	// Apply makes the devices those of a configuration file.
	Apply(ctx context.Context, specs []config.Spec) ([]Outcome, error)
}

// Outcome tells what became of one device.
type Outcome struct {
	Device string `json:"device"`
	Result Result `json:"result"`
	// Changes says in words what was changed.
	Changes    []string `json:"changes,omitempty"`
	RateWrites int      `json:"rate_writes"`
	// Attached tells that it is shaped, though perhaps as before.
	Attached bool `json:"attached"`
	// Error says why it failed.
	Error *Error `json:"error,omitempty"`
}

// Result is how something that was asked for a device ended.
type Result string

// The results.
const (
	ResultAttached  Result = "attached"
	ResultChanged   Result = "changed"
	ResultUnchanged Result = "unchanged"
	ResultDetached  Result = "detached"
	ResultGivenUp   Result = "given_up"  // it was waited for, and is not any more
	ResultWaiting   Result = "waiting"   // there is no such device yet
	ResultUnderWay  Result = "under_way" // it takes longer than the answer could wait
	ResultFailed    Result = "failed"
)

// hostTimeout is how long a client waits for the daemon of many devices, which answers when each of
// them has, or has had its time.
const hostTimeout = 2 * time.Minute

// HostClient asks the daemon of many devices.
type HostClient struct{ client *Client }

// NewHostClient makes a client. Nothing is connected before the first request.
func NewHostClient(runDir string) *HostClient {
	client := NewClient(runDir, AllDevices)
	client.device, client.http.Timeout = "all devices", hostTimeout
	return &HostClient{client}
}

// From is [Client.From].
func (c *HostClient) From(netns uint64) *HostClient {
	c.client.From(netns)
	return c
}

// Devices asks which devices are served.
func (c *HostClient) Devices(ctx context.Context) ([]string, error) {
	var names []string
	err := c.client.do(ctx, http.MethodGet, "/v1/devices", nil, &names)
	return names, err
}

// Attach hands a device to the daemon.
func (c *HostClient) Attach(ctx context.Context, spec config.Spec) (Outcome, error) {
	var outcome Outcome
	err := c.client.do(ctx, http.MethodPost, "/v1/devices", spec, &outcome)
	return outcome, err
}

// Apply hands the devices of a file to the daemon.
func (c *HostClient) Apply(ctx context.Context, specs []config.Spec) ([]Outcome, error) {
	var outcomes []Outcome
	err := c.client.do(ctx, http.MethodPut, "/v1/devices", specs, &outcomes)
	return outcomes, err
}

// serveHost adds what a Host answers.
func (s Server) serveHost(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/devices", func(w http.ResponseWriter, r *http.Request) {
		s.answer(w, r, s.Host.Devices(), nil)
	})
	mux.HandleFunc("POST /v1/devices", func(w http.ResponseWriter, r *http.Request) {
		spec, err := read[config.Spec](w, r)
		if err != nil {
			s.answer(w, r, nil, err)
			return
		}
		outcome, err := s.Host.Attach(context.WithoutCancel(r.Context()), spec)
		s.answer(w, r, outcome, err)
	})
	mux.HandleFunc("PUT /v1/devices", func(w http.ResponseWriter, r *http.Request) {
		specs, err := read[[]config.Spec](w, r)
		if err != nil {
			s.answer(w, r, nil, err)
			return
		}
		outcomes, err := s.Host.Apply(context.WithoutCancel(r.Context()), specs)
		s.answer(w, r, outcomes, err)
	})
}
