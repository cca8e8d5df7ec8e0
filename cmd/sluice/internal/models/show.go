package models

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"golang.org/x/sys/unix"
)

// writeTable draws models.
func writeTable(w io.Writer, models []Model) error {
	if len(models) == 0 {
		_, err := fmt.Fprintln(w, "no models")
		return err
	}
	t := table.NewWriter()
	t.SetStyle(table.StyleDefault)
	t.Style().Format.Header = 0 // as written
	t.AppendHeader(table.Row{"Model", "Version", "State", "Reason"})
	for _, m := range models {
		t.AppendRow(table.Row{clean(m.Name), dash(m.Version), dash(m.State), clean(m.Reason)})
	}
	_, err := fmt.Fprintln(w, t.Render())
	return err
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return clean(s)
}

// writeJSON writes models as one JSON array, [] for none.
func writeJSON(w io.Writer, models []Model) error {
	if models == nil {
		models = []Model{}
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(models)
}

// line says one model in a line.
func line(m Model) string {
	text := clean(m.Name)
	if m.Version != "" {
		text += " version " + clean(m.Version)
	}
	text += ": " + dash(m.State)
	if m.Reason != "" {
		text += ": " + clean(m.Reason)
	}
	return text
}

// progress tells on standard error what happens while a call is under way: on a
// terminal in one line that is written again and again, else in a line for each change.
type progress struct {
	w        io.Writer
	terminal bool
	quiet    bool
	start    time.Time
	last     string
}

func newProgress(w io.Writer, quiet bool, now time.Time) *progress {
	p := &progress{w: w, quiet: quiet, start: now}
	if f, ok := w.(*os.File); ok {
		_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
		p.terminal = err == nil
	}
	return p
}

// show tells where things stand; what was told already is not told again, but for the
// time on a terminal.
func (p *progress) show(now time.Time, text string) error {
	if p.quiet || text == "" {
		return nil
	}
	elapsed := now.Sub(p.start).Round(100 * time.Millisecond)
	var err error
	switch {
	case p.terminal:
		_, err = fmt.Fprintf(p.w, "\r\x1b[K%s %s", text, elapsed)
	case text != p.last:
		_, err = fmt.Fprintf(p.w, "%s (%s)\n", text, elapsed)
	}
	p.last = text
	return err
}

// end leaves the line of the terminal.
func (p *progress) end() error {
	if !p.terminal || p.quiet || p.last == "" {
		return nil
	}
	_, err := io.WriteString(p.w, "\r\x1b[K")
	return err
}

// summary says how the versions of one model stand, in a line without figures that
// change all the time.
func summary(all []Model, name string, u *upload) string {
	if u != nil && u.length > 1<<20 {
		if sent := u.sent.Load(); sent < u.length {
			return fmt.Sprintf("%s: sent %d of %d MB", name, sent>>20, u.length>>20)
		}
	}
	var parts []string
	for _, m := range all {
		if m.Name == name && m.State != "" {
			parts = append(parts, strings.TrimPrefix(line(Model{Version: m.Version, State: m.State}), " "))
		}
	}
	if len(parts) == 0 {
		return name + ": asked for"
	}
	return name + " " + strings.Join(parts, ", ")
}
