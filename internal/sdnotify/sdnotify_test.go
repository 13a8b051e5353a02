// SPDX-License-Identifier: BSD-2-Clause

package sdnotify

import (
	"net"
	"path/filepath"
	"regexp"
	"testing"
)

func TestNotify(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := Notify(Ready); err != nil {
		t.Errorf("without systemd: %v", err)
	}
	path := filepath.Join(t.TempDir(), "notify")
	for _, name := range []string{path, "@" + path} {
		socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv("NOTIFY_SOCKET", name)
		for state, want := range map[State]string{
			Ready:     `^READY=1$`,
			Reloading: `^RELOADING=1\nMONOTONIC_USEC=\d+$`,
			Stopping:  `^STOPPING=1$`,
		} {
			if err := Notify(state); err != nil {
				t.Fatal(err)
			}
			buffer := make([]byte, 256)
			n, err := socket.Read(buffer)
			if err != nil {
				t.Fatal(err)
			}
			if got := string(buffer[:n]); !regexp.MustCompile(want).MatchString(got) {
				t.Errorf("told %q, want %s", got, want)
			}
		}
		if err := socket.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Setenv("NOTIFY_SOCKET", path+"x")
	if err := Notify(Ready); err == nil {
		t.Error("told nobody, and no error")
	}
}
