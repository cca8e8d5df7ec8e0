package grpcapi

import (
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

// A batch may read a request whose caller has left, and hold its memory once more.
func TestReleaseLeavesTheRequest(t *testing.T) {
	freed := false
	memory := infer.NewBuffer(nil, func(*infer.Buffer) { freed = true })
	c := newCall()
	c.Request.Memory = memory
	memory.Retain() // the batch's
	c.release()
	if c.Request.Memory != memory {
		t.Fatal("the request has no memory any more")
	}
	c.Request.Memory.Retain() // an answer's
	memory.Release()
	if memory.Release(); !freed {
		t.Error("the memory is held")
	}
}
