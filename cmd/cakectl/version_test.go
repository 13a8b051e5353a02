// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func TestVersionLine(t *testing.T) {
	goVersion := runtime.Version()
	revision := []debug.BuildSetting{{Key: "vcs.revision", Value: "0123abc"}}
	for _, test := range []struct {
		name string
		info debug.BuildInfo
		want string
	}{
		{"a checkout", debug.BuildInfo{Main: debug.Module{Path: module, Version: "v1.2.3+dirty"}, Settings: revision}, "cakectl v1.2.3+dirty, revision 0123abc, " + goVersion},
		{"a proxy", debug.BuildInfo{Main: debug.Module{Path: module, Version: "v1.2.3"}}, "cakectl v1.2.3, " + goVersion},
		{"-buildvcs=false", debug.BuildInfo{Main: debug.Module{Path: module, Version: "(devel)"}}, "cakectl of an unknown version: built without version control (make build stamps it), " + goVersion},
		{"nothing", debug.BuildInfo{}, "cakectl of an unknown version: built without version control (make build stamps it), " + goVersion},
		{"another's tool", debug.BuildInfo{Main: debug.Module{Path: "example.org/tools", Version: "v9.9.9"}, Settings: revision, Deps: []*debug.Module{{Path: module, Version: "v1.2.3"}}}, "cakectl v1.2.3, " + goVersion},
	} {
		if got := versionLine(buildOf(&test.info)); got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}
