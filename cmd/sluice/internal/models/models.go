package models

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluice-serve/sluice/gateway/modelconfig"
)

// Exit statuses of `sluice models`, beside 0.
const (
	statusRefused     = 1 // the server said no, or the model is not as it was wanted
	statusUsage       = 2 // the command line is wrong
	statusUnreachable = 3 // no server answered
)

// Usage is the help of `sluice models`.
const Usage = `Usage: sluice models COMMAND [flags]

Commands:
  list                  the models of the server's repositories and their states
  load MODEL            load a model, or load it again; waits until it serves
  unload MODEL          unload a model; waits until it is gone
  watch [MODEL…]        tell of every change of state, until it is interrupted

Flags:
  --url <string>              the server: host:port, http://…, https://… or unix:///path (default localhost:8000)
  --header <name>:<value>     a header of every request; may be given several times; <name>:@<file> takes the value from a file
  --json                      write JSON to standard output (watch: an object in each line)
  --ready                     list: only what is ready
  --config <file>             load: a model configuration in place of the folder's, as JSON or config.pbtxt
  --file <version>/<path>=<file>  load: a file of the model; the folder is not used then; needs --config
  --dependents                unload: the models that only this one, an ensemble, needs, too
  --timeout <duration>        load, unload, watch --until-ready: how long to wait (default 10m0s)
  --interval <duration>       how often to ask for the states (default 500ms)
  --until-ready               watch: end when all that are named, or else all models, are ready
  --quiet                     no progress on standard error

Exit status: 0 done, 1 the server refused it or the model failed, 2 wrong command line, 3 no answer from the server.
The server takes load and unload with --model-control-mode=explicit.
`

// usageError is the error of a wrong command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Status is the exit status of an error of Run; 0 for nil.
func Status(err error) int {
	var wrong usageError
	var away unreachable
	switch {
	case err == nil:
		return 0
	case errors.As(err, &wrong):
		return statusUsage
	case errors.As(err, &away):
		return statusUnreachable
	}
	return statusRefused
}

// options are the flags.
type options struct {
	url                                              string
	headers, files                                   []string
	config                                           string
	json, ready, dependents, quiet, untilReady, help bool
	timeout, interval                                time.Duration
}

// command is one run.
type command struct {
	options
	client         *client
	stdout, stderr io.Writer
}

// commands are the names of what there is.
func commands() []string { return []string{"list", "load", "unload", "watch"} }

// flagsOf are the flags that belong to one command alone.
func flagsOf() map[string][]string {
	return map[string][]string{"ready": {"list"}, "config": {"load"}, "file": {"load"}, "dependents": {"unload"},
		"until-ready": {"watch"}, "timeout": {"load", "unload", "watch"}, "interval": {"load", "unload", "watch"}}
}

// Run does what args, those after `sluice models`, say. Results go to stdout, progress
// to stderr. Status tells the exit status of its error.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	c := &command{stdout: stdout, stderr: stderr}
	fs := c.flags()
	if err := fs.Parse(args); err != nil && !errors.Is(err, pflag.ErrHelp) {
		return usageError{fmt.Errorf("%w (sluice models --help lists the flags)", err)}
	}
	rest := fs.Args()
	if c.help || len(args) == 0 || len(rest) > 0 && rest[0] == "help" {
		_, err := io.WriteString(stdout, Usage)
		return err
	}
	if len(rest) == 0 {
		return usageError{fmt.Errorf("give a command: %s", strings.Join(commands(), ", "))}
	}
	name, names := rest[0], rest[1:]
	if err := c.check(fs, name, names); err != nil {
		return usageError{err}
	}
	var err error
	if c.client, err = newClient(c.url, c.headers); err != nil {
		return err
	}
	defer c.client.http.CloseIdleConnections()
	switch name {
	case "list":
		return c.list(ctx)
	case "load":
		return c.load(ctx, names[0])
	case "unload":
		return c.unload(ctx, names[0])
	}
	return c.watch(ctx, names)
}

func (c *command) flags() *pflag.FlagSet {
	fs := pflag.NewFlagSet("sluice models", pflag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	fs.StringVar(&c.url, "url", "localhost:8000", "")
	fs.StringArrayVar(&c.headers, "header", nil, "")
	fs.BoolVar(&c.json, "json", false, "")
	fs.BoolVar(&c.ready, "ready", false, "")
	fs.StringVar(&c.config, "config", "", "")
	fs.StringArrayVar(&c.files, "file", nil, "")
	fs.BoolVar(&c.dependents, "dependents", false, "")
	fs.DurationVar(&c.timeout, "timeout", 10*time.Minute, "")
	fs.DurationVar(&c.interval, "interval", 500*time.Millisecond, "")
	fs.BoolVar(&c.untilReady, "until-ready", false, "")
	fs.BoolVar(&c.quiet, "quiet", false, "")
	fs.BoolVarP(&c.help, "help", "h", false, "")
	return fs
}

// check says what is wrong with a command line.
func (c *command) check(fs *pflag.FlagSet, name string, names []string) error {
	var errs []error
	if !slices.Contains(commands(), name) {
		if near := modelconfig.Nearest(name, commands()); near != "" {
			return fmt.Errorf("no command 'models %s'; did you mean '%s'?", name, near)
		}
		return fmt.Errorf("no command 'models %s'; there are %s", name, strings.Join(commands(), ", "))
	}
	for flag, of := range flagsOf() {
		if fs.Changed(flag) && !slices.Contains(of, name) {
			errs = append(errs, fmt.Errorf("--%s is a flag of %s, not of %s", flag, strings.Join(of, " and "), name))
		}
	}
	switch {
	case (name == "load" || name == "unload") && len(names) != 1:
		errs = append(errs, fmt.Errorf("%s takes one model, not %d", name, len(names)))
	case name == "list" && len(names) > 0:
		errs = append(errs, errors.New("list takes no model"))
	}
	if slices.Contains(names, "") {
		errs = append(errs, errors.New("the name of a model is empty"))
	}
	if c.interval < 10*time.Millisecond || c.timeout <= 0 {
		errs = append(errs, errors.New("--interval must be at least 10ms and --timeout greater than 0"))
	}
	return errors.Join(errs...)
}

func (c *command) write(models []Model) error {
	if c.json {
		return writeJSON(c.stdout, models)
	}
	return writeTable(c.stdout, models)
}

func (c *command) list(ctx context.Context) error {
	all, err := c.client.index(ctx, c.ready)
	if err != nil {
		return err
	}
	return c.write(all)
}

// of are the rows of one model.
func of(all []Model, name string) []Model {
	return slices.DeleteFunc(slices.Clone(all), func(m Model) bool { return m.Name != name })
}

// load asks for it and tells the states meanwhile; the call answers when it serves.
func (c *command) load(ctx context.Context, name string) error {
	u, err := newUpload(c.config, c.files)
	if err != nil {
		return err
	}
	call := func(ctx context.Context) error { return c.client.post(ctx, modelPath(name, "load"), u.body(), nil) }
	return errors.Join(c.run(ctx, name, u, call), u.close())
}

// unload asks for it and waits until no version serves or is on its way.
func (c *command) unload(ctx context.Context, name string) error {
	return c.run(ctx, name, nil, func(ctx context.Context) error {
		b, err := jsonBody(map[string]any{"parameters": map[string]any{"unload_dependents": c.dependents}})
		if err != nil {
			return err
		}
		if err := c.client.post(ctx, modelPath(name, "unload"), b, nil); err != nil {
			return err
		}
		return c.until(ctx, func(all []Model) (bool, error) {
			return !slices.ContainsFunc(of(all, name), func(m Model) bool { return m.State == "READY" || m.State == "UNLOADING" }), nil
		})
	})
}

// run makes a call and shows the model's states until it has ended, and then its rows.
func (c *command) run(ctx context.Context, name string, u *upload, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("model '%s' took longer than --timeout=%s; the server goes on with it", name, c.timeout))
	defer cancel()
	p := newProgress(c.stderr, c.quiet || c.json, time.Now())
	done := make(chan error, 1)
	go func() { done <- call(ctx) }()
	ticker := time.NewTicker(c.interval)
	defer ticker.Stop()
	for {
		select {
		case err := <-done:
			if err = errors.Join(err, p.end()); err != nil {
				return err
			}
			all, err := c.client.index(ctx, false)
			if err != nil {
				return err
			}
			return c.write(of(all, name))
		case now := <-ticker.C:
			all, err := c.client.index(ctx, false)
			if err != nil {
				continue // the call itself tells what is wrong
			}
			if err := p.show(now, summary(all, name, u)); err != nil {
				cancel()
				return errors.Join(err, <-done)
			}
		}
	}
}

// until asks for the states until enough says so.
func (c *command) until(ctx context.Context, enough func([]Model) (bool, error)) error {
	ticker := time.NewTicker(c.interval)
	defer ticker.Stop()
	for {
		all, err := c.client.index(ctx, false)
		if err != nil {
			return err
		}
		if ok, err := enough(all); ok || err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// change is one line of watch --json.
type change struct {
	Time time.Time `json:"time"`
	Model
	Gone bool `json:"gone,omitempty"` // the row is in the index no more
}

// watch tells of every change. That the server is away is told once, and when it is
// back.
func (c *command) watch(ctx context.Context, names []string) error {
	if c.untilReady {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("not ready after --timeout=%s", c.timeout))
		defer cancel()
	}
	w := &watcher{command: c, names: names, seen: map[[2]string]Model{}}
	ticker := time.NewTicker(c.interval)
	defer ticker.Stop()
	for {
		all, err := c.client.index(ctx, false)
		if ctx.Err() == nil {
			if done, err := w.look(time.Now(), all, err); done || err != nil {
				return err
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), context.Canceled) {
				return nil // it was interrupted, which is how it ends
			}
			return context.Cause(ctx)
		}
	}
}

// watcher is what watch has told.
type watcher struct {
	*command
	names []string
	seen  map[[2]string]Model // by name and version
	away  bool
}

func (w *watcher) look(now time.Time, all []Model, err error) (done bool, _ error) {
	if err != nil {
		if !w.away {
			w.away = true
			_, err = fmt.Fprintf(w.stderr, "%s %v\n", now.Format(time.TimeOnly), err)
			return false, err
		}
		return false, nil
	}
	if w.away {
		w.away = false
		if _, err := fmt.Fprintf(w.stderr, "%s %s answers again\n", now.Format(time.TimeOnly), w.client.base); err != nil {
			return false, err
		}
	}
	if len(w.names) > 0 {
		all = slices.DeleteFunc(all, func(m Model) bool { return !slices.Contains(w.names, m.Name) })
	}
	there := map[[2]string]bool{}
	for _, m := range all {
		key := [2]string{m.Name, m.Version}
		there[key] = true
		if m.Version != "" {
			delete(w.seen, [2]string{m.Name}) // a row without a version gives way to one with it
		}
		if before, ok := w.seen[key]; !ok || before != m {
			w.seen[key] = m
			if err := w.tell(change{Time: now, Model: m}); err != nil {
				return false, err
			}
		}
	}
	for key, m := range w.seen {
		if !there[key] {
			delete(w.seen, key)
			if err := w.tell(change{Time: now, Model: m, Gone: true}); err != nil {
				return false, err
			}
		}
	}
	return w.untilReady && w.ready(all), nil
}

// ready says that all named models, or else all there are, have a version that is ready
// and none on its way.
func (w *watcher) ready(all []Model) bool {
	good := map[string]bool{}
	for _, m := range all {
		if m.State == "LOADING" || m.State == "UNLOADING" {
			return false
		}
		good[m.Name] = good[m.Name] || m.State == "READY"
	}
	for _, name := range w.names {
		if !good[name] {
			return false
		}
	}
	for _, ok := range good {
		if !ok {
			return false
		}
	}
	return len(good) > 0
}

func (w *watcher) tell(ch change) error {
	if w.json {
		return json.NewEncoder(w.stdout).Encode(ch)
	}
	text := line(ch.Model)
	if ch.Gone {
		text = line(Model{Name: ch.Name, Version: ch.Version, State: "gone"})
	}
	_, err := fmt.Fprintf(w.stdout, "%s %s\n", ch.Time.Format(time.TimeOnly), text)
	return err
}
