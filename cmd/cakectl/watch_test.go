// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"errors"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cakectl/cakectl/pkg/daemon"
	"github.com/cakectl/cakectl/pkg/rates"
)

func TestWatchPrintsALineASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := newFakeHost()
		host.attachSpec("lo", rates.Gbit)
		var out terminal
		f := &foreground{app: &app{stdout: &out}, name: "lo", device: &daemon.Device{Shaped: &fakeDevice{host: host, name: "lo"}}}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); f.watch(ctx) }()
		time.Sleep(2*time.Second + time.Millisecond)
		host.mu.Lock()
		host.statusErr = errors.New("read the counters:\nno such map")
		host.mu.Unlock()
		time.Sleep(time.Second)
		stop()
		<-done
		want := regexp.MustCompile(`^time .*drops
\d\d:\d\d:01 .* 0
\d\d:\d\d:02 .* 0
lo: read the counters:; no such map
$`)
		if !want.MatchString(out.String()) {
			t.Errorf("got:\n%s", &out)
		}
	})
}
