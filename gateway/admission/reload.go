package admission

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/sluice-serve/sluice/internal/configfile"
)

// watched is a limits file; the zero value is none.
type watched struct {
	path     string
	follower *configfile.Follower[*Rules]
}

// watch reads a limits file for the first time.
func watch(path string, now time.Time) (watched, *Rules, error) {
	follower, rules, err := configfile.Open(MaxFile, now, func(r *configfile.Reading) (*Rules, error) {
		text, err := r.YAML(path, emptyList)
		if err != nil {
			return nil, fmt.Errorf("limits file: %w", err)
		}
		rules, err := Parse(text)
		if err != nil {
			return nil, fmt.Errorf("limits file %s: %w", path, err)
		}
		return rules, nil
	})
	return watched{path, follower}, rules, err
}

// follow looks at the file and takes it if it is another one, settled and right. What is wrong
// with it is told once.
func (l *Limits) follow(f *watched, now time.Time) {
	if f.path == "" {
		return
	}
	rules, result, err := f.follower.Look(now)
	switch result {
	case configfile.Failed:
		l.log.Error("the limits file is wrong; the limits stay as they are",
			slog.String("file", f.path), slog.String("error", err.Error()))
	case configfile.Changed:
		l.use(rules)
		l.log.Info("the limits file was read", slog.String("file", f.path), slog.Int("rules", len(rules.rules)))
	case configfile.Restored:
		l.log.Info("the limits file is again the one in force", slog.String("file", f.path))
	default:
		return
	}
	l.reloaded(err)
}
