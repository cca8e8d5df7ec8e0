package opencalls

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/transcript"
)

var update = transcript.Flag()

// Events: call ID model=H serves=BATCH.INDEX, part ID, taken ID, final ID, request BATCH.INDEX
// (has ended), batch B (has ended), model H (is unloaded), config open=… model=… window=….
func TestTranscripts(t *testing.T) {
	transcript.Run(t, *update, replay)
}

func replay(t *testing.T, text []byte) []byte {
	var out bytes.Buffer
	table := New(Limits{Open: 8, OpenOfModel: 8, Window: 2})
	cancel := func(ids []uint64) {
		for _, id := range ids {
			fmt.Fprintf(&out, "  cancel %d\n", id)
		}
	}
	return transcript.Replay(t, text, &out, func(verb string, args []string) error {
		var number uint64
		var serves Request
		handle, limits := uint64(1), Limits{Open: 8, OpenOfModel: 8, Window: 2}
		for _, arg := range args {
			name, value, named := strings.Cut(arg, "=")
			if !named {
				value = name
			}
			if name == "serves" || strings.Contains(value, ".") {
				if _, err := fmt.Sscanf(value, "%d.%d", &serves.Batch, &serves.Index); err != nil {
					return err
				}
				continue
			}
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				return err
			}
			switch {
			case !named:
				number = n
			case name == "open":
				limits.Open = int(n)
			case name == "window":
				limits.Window = int(n)
			case name == "model" && verb == "config":
				limits.OpenOfModel = int(n)
			case name == "model":
				handle = n
			default:
				return fmt.Errorf("no word %q", name)
			}
		}
		switch verb {
		case "config":
			table = New(limits)
		case "call":
			if err := table.Begin(number, handle, serves); err != nil {
				fmt.Fprintf(&out, "  refuse %d: %s: %s\n", number, infer.ReasonOf(err), err)
			}
		case "part":
			if !table.Part(number) {
				fmt.Fprintf(&out, "  %d waits\n", number)
			}
		case "taken":
			if !table.Taken(number) {
				fmt.Fprintf(&out, "  nothing to take of %d\n", number)
			}
		case "final":
			table.Final(number)
		case "request":
			cancel(table.EndRequest(serves))
		case "batch":
			cancel(table.EndBatch(number))
		case "model":
			cancel(table.EndModel(number))
		default:
			return fmt.Errorf("no event %q", verb)
		}
		if table.Idle() {
			fmt.Fprintf(&out, "  %d open, idle\n", table.Len())
		} else {
			fmt.Fprintf(&out, "  %d open\n", table.Len())
		}
		return nil
	})
}
