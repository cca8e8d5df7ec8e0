package tracing

import (
	"errors"
	"time"
)

// The bounds of what a group keeps in memory.
const (
	maxBuffer  = 1 << 20     // bytes of JSON
	flushAfter = time.Second // for the main file, unless a count runs
)

// group is what one epoch's traces are before they are in a file. A group that is
// numbered goes to the next <file>.<idx>, one that is not to the main file.
// Source: TraceSetting::WriteTrace and its destructor in the original, which keeps all
// of it in memory.
type group struct {
	text    []byte // elements, separated by commas
	waiting int    // traces in text
	traces  uint32 // in this group, the written ones too
	out     *array // the numbered file that is being filled; nil: none yet
}

func (g *group) add(elements []byte) {
	if len(g.text) > 0 {
		g.text = append(g.text, ',')
	}
	g.text = append(g.text, elements...)
	g.waiting++
	g.traces++
}

// write puts what waits into a file, and ends the group where last is set. lost is how
// many traces are in no file on an error.
func (g *group) write(f *files, numbered, last bool) (lost int, err error) {
	to := &f.main
	if numbered {
		if g.out == nil {
			g.out = f.numbered()
		}
		to = g.out
	}
	if len(g.text) > 0 {
		if err = to.add(g.text); err != nil {
			lost = g.waiting
		}
	}
	g.text, g.waiting = g.text[:0], 0
	if cap(g.text) > 2*maxBuffer {
		g.text = nil
	}
	if last {
		g.traces = 0
		if g.out != nil {
			err = errors.Join(err, g.out.close())
			g.out = nil
		}
	}
	return lost, err
}
