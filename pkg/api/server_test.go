// SPDX-License-Identifier: BSD-2-Clause

package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cakectl/cakectl/pkg/config"
)

// What a client got wrong is no warning in the log of the daemon, and what the kernel refused is.
func TestServerWarnsOfFailuresOnly(t *testing.T) {
	for err, warns := range map[error]bool{
		fmt.Errorf("%w: bandwidth", config.ErrInvalid): false,
		errNotAttached:                           false,
		errors.New("device or resource is busy"): true,
	} {
		var log strings.Builder
		s := Server{Classify: classify, Log: slog.New(slog.NewTextHandler(&log, nil))}
		s.answer(httptest.NewRecorder(), httptest.NewRequest("PATCH", "/v1/config", nil), nil, err)
		if got := strings.Contains(log.String(), "level=WARN"); got != warns || got != (log.Len() > 0) {
			t.Errorf("%v: logged %q, and should warn: %t", err, &log, warns)
		}
	}
}

// Another network namespace may have a device of the same name.
func TestServerOfAnotherNetns(t *testing.T) {
	dir := socketDir(t)
	l := mustListen(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- l.Serve(ctx, Server{Device: &fakeDevice{}, Classify: classify, Netns: 4026531840, Log: slog.New(slog.DiscardHandler)})
	}()
	for netns, answers := range map[uint64]bool{0: true, 4026531840: true, 4026531841: false} {
		_, err := NewClient(dir, device).From(netns).Status(t.Context())
		var refused *Error
		switch errors.As(err, &refused); {
		case answers && err != nil:
			t.Errorf("from %d: %v", netns, err)
		case !answers && (refused == nil || refused.Kind != KindElsewhere || !strings.Contains(refused.Message, device+" is served by process")):
			t.Errorf("from %d: got %v, want to be told of the other namespace", netns, err)
		}
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
