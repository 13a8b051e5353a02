// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFindMirrors(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		files map[string]string
		want  mirrors
	}{
		{
			name: "deb822",
			files: map[string]string{"sources.list.d/debian.sources": `# comment
Types: deb deb-src
URIs: http://mirror.test/debian
Suites: bookworm bookworm-updates
Components: main

Types: deb
URIs: http://mirror.test/debian-security/
Suites: bookworm-security
Components: main
`},
			want: mirrors{archive: "http://mirror.test/debian", security: "http://mirror.test/debian-security/"},
		},
		{
			name: "one line",
			files: map[string]string{"sources.list": `
# deb http://old.test/debian buster main
deb [arch=amd64 signed-by=/k.gpg] https://mirror.test/debian trixie main contrib # here
deb https://mirror.test/debian-security trixie-security main
deb-src https://source.test/debian trixie main
`},
			want: mirrors{archive: "https://mirror.test/debian", security: "https://mirror.test/debian-security"},
		},
		{
			name: "another vendor with a suite named alike comes first",
			files: map[string]string{
				"sources.list.d/a.list":    "deb https://vendor.test/apt bookworm main\n",
				"sources.list.d/b.sources": "Types: deb\nURIs: http://mirror.test/debian\nSuites: bookworm\nComponents: main\n",
			},
			want: mirrors{archive: "http://mirror.test/debian"},
		},
		{
			name:  "an archive under another name",
			files: map[string]string{"sources.list": "deb http://mirror.test/copy-of-it bookworm main\n"},
			want:  mirrors{archive: "http://mirror.test/copy-of-it"},
		},
		{
			name: "disabled, wrong suite, files that apt ignores",
			files: map[string]string{
				"sources.list.d/a.sources": "Types: deb\nEnabled: no\nURIs: http://a.test/debian\nSuites: bookworm\nComponents: main\n",
				"sources.list.d/b.list":    "deb http://b.test/debian nodistro main\n",
				"sources.list.d/c.save":    "deb http://c.test/debian bookworm main\n",
				"sources.list":             "deb http://d.test/debian bookworm main\n",
			},
			want: mirrors{archive: "http://d.test/debian"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			etc := t.TempDir()
			for name, text := range test.files {
				path := filepath.Join(etc, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got, err := findMirrors(etc)
			if err != nil {
				t.Fatal(err)
			}
			if got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestFindMirrorsWithoutDebian(t *testing.T) {
	t.Parallel()
	if got, err := findMirrors(t.TempDir()); err == nil {
		t.Errorf("no sources at all gave %+v", got)
	}
}
