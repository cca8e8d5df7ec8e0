package gateway

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/sluice-serve/sluice/workers/client"
)

// Engines writes which libraries compute models here: for each backend that needs one its version, where it is or was looked for,
// and where it is missing the command that brings it. It starts the workers to ask them.
func Engines(ctx context.Context, cfg Config, out io.Writer) error {
	var rows, missing [][]string
	var none []string
	if err := withWorkers(ctx, &cfg, func(w *client.Workers) {
		for name, b := range together(w.Backends()) {
			e := b.GetEngine()
			switch {
			case e == nil:
				none = append(none, name)
			case b.GetUnavailable() != "" || e.GetPath() == "":
				rows = append(rows, []string{name, e.GetName(), "missing", e.GetPath()})
				missing = append(missing, []string{name, e.GetName(), e.GetGet(), b.GetUnavailable()})
			default:
				rows = append(rows, []string{name, e.GetName(), cmp.Or(b.GetVersion(), "found"), e.GetPath()})
			}
		}
	}); err != nil {
		return err
	}
	slices.SortFunc(rows, slices.Compare)
	slices.SortFunc(missing, slices.Compare)
	slices.Sort(none)
	text := strings.TrimPrefix(render([]string{"Backend", "Engine", "Version", "Where"}, rows), "\n")
	for _, m := range missing {
		text += fmt.Sprintf("\nBackend %s has no %s", m[0], m[1])
		if m[3] != "" {
			text += ": " + m[3]
		}
		text += "\n  to get it: " + m[2] + "\n"
	}
	if len(none) > 0 {
		text += "\nWithout an engine: " + strings.Join(none, ", ") + "\n"
	}
	_, err := io.WriteString(out, text)
	return err
}
