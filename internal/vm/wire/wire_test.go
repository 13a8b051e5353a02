// SPDX-License-Identifier: BSD-2-Clause

package wire

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

func TestFrames(t *testing.T) {
	t.Parallel()
	var stream bytes.Buffer
	if err := Write(&stream, KindOutput, []byte("text")); err != nil {
		t.Fatal(err)
	}
	if err := WriteJSON(&stream, KindStepEnd, StepEnd{Index: 2, ExitCode: 3}); err != nil {
		t.Fatal(err)
	}
	if err := Write(&stream, KindEnd, nil); err != nil {
		t.Fatal(err)
	}
	whole := bytes.Clone(stream.Bytes())
	for _, want := range []struct {
		kind    Kind
		payload string
	}{
		{KindOutput, "text"}, {KindStepEnd, `{"index":2,"exit_code":3,"elapsed_ns":0}`}, {KindEnd, ""},
	} {
		kind, payload, err := Read(&stream)
		if err != nil || kind != want.kind || string(payload) != want.payload {
			t.Errorf("got %q %q, %v, want %q %q", kind, payload, err, want.kind, want.payload)
		}
	}
	if _, _, err := Read(&stream); err != io.EOF {
		t.Errorf("after the last frame: %v", err)
	}
	// Cut anywhere within the first frame, the stream is broken, not at its end.
	for n := 1; n < 5+len("text"); n++ {
		if _, _, err := Read(bytes.NewReader(whole[:n])); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut after %d bytes: %v", n, err)
		}
	}
}

func TestFrameTooLong(t *testing.T) {
	t.Parallel()
	if err := Write(io.Discard, KindOutput, make([]byte, maxPayload+1)); err == nil {
		t.Error("a frame over the limit was written")
	}
	if _, _, err := Read(bytes.NewReader([]byte("o\xff\xff\xff\xff"))); err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a frame over the limit: %v", err)
	}
}
