package drive

import (
	"errors"

	"github.com/sluice-serve/sluice/infer"
)

// logBugs tells of the panics of an event.
func (d *Driver) logBugs(n *news) {
	if n.fault != nil {
		d.log("a scheduler met a fault: what waited is refused, and it begins anew", n.fault)
	}
	for _, err := range n.bugs {
		d.log("a scheduler met a fault, and goes on", err)
	}
}

// log tells of a panic.
func (d *Driver) log(what string, err error) {
	var bug *infer.Bug
	if errors.As(err, &bug) {
		d.aside(func() {
			d.deps.Log.Error(what, "model", d.cfg.Model.Name, "version", d.version,
				"panic", bug.Value, "stack", string(bug.Stack))
		})
	}
}

// maxWriting is how many lines may be on their way to the log. What comes while so many are
// stuck there is not written: who causes it may do so for ever.
const maxWriting = 64

// aside writes to the log on a goroutine of its own: who reads the log may take his time, and
// others wait for this one.
func (d *Driver) aside(write func()) {
	if d.writing.Add(1) > maxWriting {
		d.writing.Add(-1)
		return
	}
	go quietly(func() {
		defer d.writing.Add(-1)
		write()
	})
}

// errFault is what requests hear that a panic has hit; the log has its stack once.
func errFault(req *infer.Request) error {
	return infer.Errorf(infer.Internal, "%sinternal error", req.Prefix())
}

// quietly is for what comes behind a panic and may meet the same fault: memory that it can't
// give back, or a line of the log, is lost, and nothing else.
func quietly(f func()) {
	defer func() { _ = recover() }()
	f()
}

// caught ends a panic of which nothing follows. It must be deferred itself.
func (d *Driver) caught(what string) {
	if v := recover(); v != nil {
		d.log(what, infer.Recovered(v))
	}
}

// bugLocked is the error of a batch that a panic has hit, of which the driver goes on.
func (b *batch) bugLocked(v any) error {
	b.d.bugs = append(b.d.bugs, infer.Recovered(v))
	return errFault(b.requestOf())
}
