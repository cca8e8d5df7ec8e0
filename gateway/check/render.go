package check

import (
	"fmt"
	"io"
	"strings"
)

// WriteTo writes the report as text, and in its last lines the outcome.
func (r *Report) WriteTo(w io.Writer) (int64, error) {
	var b strings.Builder
	for _, fault := range r.Repositories {
		fmt.Fprintf(&b, "WRONG  %s\n\n", fault)
	}
	for i := range r.Models {
		r.Models[i].render(&b)
	}
	unit := "models"
	if len(r.Models) == 1 {
		unit = "model"
	}
	fmt.Fprintf(&b, "%d %s", len(r.Models), unit)
	if n := r.Wrong(); n > 0 {
		fmt.Fprintf(&b, ", %d with faults", n)
	} else if r.OK() && len(r.Models) > 0 {
		b.WriteString(", nothing wrong")
	}
	b.WriteString(".\n")
	if !r.Opened {
		b.WriteString("No worker was asked: model files were not opened, and backends and devices were not checked.\n")
	}
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}

func (m *Model) render(b *strings.Builder) {
	state := "ok   "
	if len(m.Faults) > 0 {
		state = "WRONG"
	}
	fmt.Fprintf(b, "%s  %s", state, m.Name)
	if m.Namespace != "" {
		fmt.Fprintf(b, " in %s", strings.Map(printable, m.Namespace))
	}
	b.WriteString("\n")
	section := func(title string, lines []string) {
		for i, line := range lines {
			if i > 0 {
				title = ""
			}
			// Control characters of file names stay out of the terminal.
			fmt.Fprintf(b, "         %-10s %s\n", title, strings.Map(printable, line))
		}
	}
	section("completed", m.Completed)
	section("loads", m.Loads)
	section("runs", m.Remarks)
	for _, n := range m.Explained {
		section(n.Title, n.Lines)
	}
	section("ignored", m.Ignored)
	var faults []string
	for _, f := range m.Faults {
		faults = append(faults, f.String())
	}
	section("wrong", faults)
	section("hint", m.Hints)
	b.WriteString("\n")
}

func printable(r rune) rune {
	if r < ' ' || r == 0x7f {
		return '?'
	}
	return r
}
