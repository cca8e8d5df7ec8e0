// Package flags is the command line of the gateway: the original's flag names,
// defaults and formats, and those of our own, decoded to one gateway.Config. Only cmd
// uses it; it reads neither the environment nor files except through what it is given.
package flags

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// flag is one flag of the table.
type flag struct {
	name   string
	arg    string // what help shows for the value: "string", "boolean", "integer", …; "": takes none
	def    string // what help shows as the default; "" for none
	help   string
	repeat bool
	set    func(value string) error
}

// group is flags under one heading of the help.
type group struct {
	title string
	flags []flag
}

// set is a table of flags that parses a command line.
type set struct {
	groups []group
	errs   []error
}

// envName is the environment variable that stands for a flag: SLUICE_HTTP_PORT.
func envName(name string) string {
	return "SLUICE_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// value is a flag as pflag's Value.
type value struct {
	flag *flag
	seen bool
	errs *[]error
}

func (v *value) String() string { return v.flag.def }
func (v *value) Type() string   { return v.flag.arg }

// Set collects faults instead of stopping at the first, so that one run tells all.
func (v *value) Set(s string) error {
	if v.seen && !v.flag.repeat {
		*v.errs = append(*v.errs, fmt.Errorf("--%s is given more than once", v.flag.name))
		return nil
	}
	v.seen = true
	if err := v.flag.set(s); err != nil {
		*v.errs = append(*v.errs, fmt.Errorf("--%s: %w", v.flag.name, err))
	}
	return nil
}

// parse reads args and then the environment for flags that args did not give. A
// repeatable flag's variable holds its values separated by semicolons.
func (s *set) parse(args []string, env func(string) (string, bool)) (rest []string, err error) {
	fs := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
	fs.SortFlags = false
	fs.Usage = func() {}
	fs.SetOutput(io.Discard)
	var values []*value
	s.each(func(f *flag) {
		v := &value{flag: f, errs: &s.errs}
		values = append(values, v)
		pf := fs.VarPF(v, f.name, "", f.help)
		if f.arg == "" || f.arg == "boolean" {
			pf.NoOptDefVal = "true"
		}
	})
	if err := fs.Parse(s.normal(args)); err != nil {
		s.errs = append(s.errs, s.explain(err))
	}
	for _, v := range values {
		text, ok := env(envName(v.flag.name))
		if !ok || v.seen {
			continue
		}
		parts := []string{text}
		if v.flag.repeat {
			parts = strings.Split(text, ";")
		}
		for _, p := range parts {
			if err := v.flag.set(p); err != nil {
				s.errs = append(s.errs, fmt.Errorf("%s: %w", envName(v.flag.name), err))
			}
		}
	}
	return fs.Args(), errors.Join(s.errs...)
}

func (s *set) each(do func(*flag)) {
	for g := range s.groups {
		for f := range s.groups[g].flags {
			do(&s.groups[g].flags[f])
		}
	}
}

// normal turns `--flag false` into `--flag=false` for boolean flags, whose value the
// original takes from the next argument, and -h into --help. There are no other flags
// of one dash: they are faults.
func (s *set) normal(args []string) []string {
	booleans, valued := map[string]bool{}, map[string]bool{}
	s.each(func(f *flag) {
		booleans["--"+f.name] = f.arg == "boolean"
		valued["--"+f.name] = f.arg != "boolean" && f.arg != ""
	})
	var out []string
	for i := 0; i < len(args); i++ {
		arg := args[i]
		switch {
		case arg == "--":
			return append(out, args[i:]...)
		case arg == "-h":
			arg = "--help"
		case strings.HasPrefix(arg, "-") && !strings.HasPrefix(arg, "--") && arg != "-":
			s.errs = append(s.errs, s.unknown("-", arg[1:]))
			if i+1 < len(args) && !strings.Contains(arg, "=") && !strings.HasPrefix(args[i+1], "-") {
				i++ // probably its value
			}
			continue
		case valued[arg] && i+1 < len(args):
			out = append(out, arg)
			i++
			arg = args[i]
		case booleans[arg] && i+1 < len(args):
			if _, err := boolean(args[i+1]); err == nil {
				i++
				arg += "=" + args[i]
			}
		}
		out = append(out, arg)
	}
	return out
}

// explain words the errors of pflag as ours.
func (s *set) explain(err error) error {
	var unknown *pflag.NotExistError
	var bare *pflag.ValueRequiredError
	switch {
	case errors.As(err, &unknown):
		return s.unknown("--", unknown.GetSpecifiedName())
	case errors.As(err, &bare):
		return fmt.Errorf("--%s needs a value", bare.GetFlag().Name)
	}
	return err
}

// unknown is the error of a flag that there is not, with the nearest one's name where
// that is near for its length.
func (s *set) unknown(dashes, name string) error {
	name, _, _ = strings.Cut(name, "=")
	best, at := "", min(4, 1+len(name)/3)
	s.each(func(f *flag) {
		d := distance(name, f.name)
		if strings.HasPrefix(f.name, name) && len(name) > 3 {
			d = min(d, 1)
		}
		if d < at {
			best, at = f.name, d
		}
	})
	if best == "" {
		return fmt.Errorf("unknown flag %s%s (--help lists them)", dashes, name)
	}
	return fmt.Errorf("unknown flag %s%s; did you mean --%s?", dashes, name, best)
}

// distance is the Levenshtein distance.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			diagonal, row[j] = row[j], min(row[j]+1, row[j-1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}

// usage writes the help, in groups.
func (s *set) usage(w io.Writer) error {
	var b strings.Builder
	for _, g := range s.groups {
		fmt.Fprintf(&b, "\n%s:\n", g.title)
		for _, f := range g.flags {
			fmt.Fprintf(&b, "  --%s", f.name)
			if f.arg != "" {
				fmt.Fprintf(&b, " <%s>", f.arg)
			}
			if f.def != "" {
				fmt.Fprintf(&b, "  (default %s)", f.def)
			}
			b.WriteByte('\n')
			for _, line := range wrap(f.help, 88) {
				fmt.Fprintf(&b, "        %s\n", line)
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

// boolean reads what the original reads: true, false, 1, 0, on, off, yes, no.
func boolean(s string) (bool, error) {
	switch strings.ToLower(s) {
	case "true", "1", "on", "yes":
		return true, nil
	case "false", "0", "off", "no":
		return false, nil
	}
	return false, fmt.Errorf("'%s' is not a boolean; give true or false", s)
}

func boolInto(p *bool) func(string) error {
	return func(s string) (err error) {
		*p, err = boolean(s)
		return err
	}
}

func stringInto(p *string) func(string) error {
	return func(s string) error { *p = s; return nil }
}

// intInto reads an integer of [low, high].
func intInto[T ~int | ~int32 | ~int64 | ~uint32](p *T, low, high int64) func(string) error {
	return func(s string) error {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return fmt.Errorf("'%s' is not an integer", s)
		}
		if n < low || n > high {
			return fmt.Errorf("%d is not in [%d, %d]", n, low, high)
		}
		*p = T(n)
		return nil
	}
}
