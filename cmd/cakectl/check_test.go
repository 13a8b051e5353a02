// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"regexp"
	"strings"
	"testing"
)

// The help of check names every key that the file takes.
func TestCheckHelpHasEveryKey(t *testing.T) {
	s := newShell(t)
	help, _ := s.run(exitDone, "check", "--help")
	_, mistakes := s.run(exitInvalid, "check", s.file("lo: {x: 1, tins: {voice: {x: 1}}}"))
	lists := regexp.MustCompile(`unknown setting "x": want (.*)`).FindAllStringSubmatch(mistakes, -1)
	if len(lists) != 2 {
		t.Fatalf("mistakes: %s", mistakes)
	}
	for _, list := range lists {
		for _, key := range strings.Split(list[1], ", ") {
			if !regexp.MustCompile(`[ {,]` + key + `[,: (]`).MatchString(help) {
				t.Errorf("lacks %s:\n%s", key, help)
			}
		}
	}
}
