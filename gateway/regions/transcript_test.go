package regions

import (
	"bytes"
	"fmt"
	"strconv"
	"testing"

	"github.com/sluice-serve/sluice/internal/transcript"
)

var update = transcript.Flag()

// TestTranscripts plays events against a table:
//
//	table REGIONS BYTES SLOTS         one of such limits
//	add OWNER NAME SIZE [INODE]       a region is registered; the slot, or why not
//	opened SLOT                       workers have it
//	find OWNER NAME                   the slot that a request gets, with a reference; - for none
//	drop SLOT                         the reference ends; idle: the last one of what leaves
//	leave SLOT                        the name goes; idle: nobody uses it
//	closed SLOT                       workers have let it go
func TestTranscripts(t *testing.T) {
	transcript.Run(t, *update, func(t *testing.T, text []byte) []byte {
		p := &player{}
		return transcript.Replay(t, text, &p.out, p.event)
	})
}

type player struct {
	out bytes.Buffer
	t   table
}

func (p *player) event(verb string, args []string) error {
	n := func(i int) int64 {
		v, err := strconv.ParseInt(args[i], 10, 64)
		if err != nil {
			return 0
		}
		return v
	}
	said := ""
	switch verb {
	case "table":
		p.t = newTable(limits{int(n(0)), n(1)}, uint32(n(2)))
	case "add":
		m := memory{size: n(2)}
		if len(args) > 3 {
			m.source.ino = uint64(n(3))
		}
		slot, err := p.t.add(id{owner{name: args[0]}, args[1]}, m)
		if said = fmt.Sprint(slot); err != nil {
			said = err.Error()
		}
	case "opened":
		said = fmt.Sprint(p.t.opened(uint32(n(0))))
	case "find":
		slot, r := p.t.find(id{owner{name: args[0]}, args[1]})
		if said = "-"; slot != 0 {
			r.refs++
			said = fmt.Sprint(slot)
		}
	case "drop":
		said = idleText(p.t.drop(uint32(n(0))))
	case "leave":
		said = idleText(p.t.leave(uint32(n(0))))
	case "closed":
		p.t.closed(uint32(n(0)))
		said = fmt.Sprintf("%d regions are left", len(p.t.rows))
	default:
		return fmt.Errorf("no event %s", verb)
	}
	if said != "" {
		fmt.Fprintln(&p.out, " ", said)
	}
	return nil
}

func idleText(idle bool) string {
	if idle {
		return "idle"
	}
	return "in use"
}
