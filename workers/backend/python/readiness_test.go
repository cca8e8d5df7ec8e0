package python

import (
	"context"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/python/internal/channel"
)

var _ backend.Asked = (*instance)(nil)

// One question is open at a time, and whoever asks meanwhile waits for its answer. A process that
// answers what nobody asked is killed.
func TestReadiness(t *testing.T) {
	in, last := faked(t, nil, func(*fake, uint64, []uint64) {})
	if in.AsksReady() || in.Ready(t.Context()) != nil {
		t.Fatal("a model without the hook is asked")
	}
	r, f := in.run, last()
	r.loaded |= hookReady
	say := func(id uint64, ready uint8, text string) {
		f.write(t, f.events, channel.Readiness, id, func(e *channel.Encoder) {
			e.U8(ready)
			e.String(text)
		})
	}
	asked := func(want uint64) {
		t.Helper()
		var n [8]byte
		if _, err := f.channel.Files()[2].Read(n[:]); err != nil || binary.NativeEndian.Uint64(n[:]) != want {
			t.Fatalf("%d questions, %v; want %d", binary.NativeEndian.Uint64(n[:]), err, want)
		}
	}
	first := make(chan error)
	for id, row := range []struct {
		ready uint8
		text  string
		code  infer.Code
		want  string
	}{
		{1, "", 0, ""}, {0, "", infer.Unavailable, "' is not ready (user-defined check failed)."},
		{0, "ValueError: boom", infer.Internal, "ValueError: boom"},
	} {
		go func() { first <- in.Ready(t.Context()) }()
		asked(1)
		ctx, leave := context.WithCancel(t.Context())
		leave()
		if err := in.Ready(ctx); infer.CodeOf(err) != infer.Cancelled {
			t.Errorf("who left has %v", err)
		}
		say(uint64(id)+1, row.ready, row.text)
		err := <-first
		if (err == nil) != (row.want == "") ||
			err != nil && (infer.CodeOf(err) != row.code || !strings.Contains(err.Error(), row.want)) {
			t.Errorf("answer %d, %q: %v", row.ready, row.text, err)
		}
	}
	go func() { first <- in.Ready(t.Context()) }()
	asked(1)
	say(9, 1, "")
	if err := <-first; infer.CodeOf(err) != infer.Unavailable || !strings.Contains(err.Error(), "is not healthy") {
		t.Errorf("an answer to another question: %v", err)
	}
}
