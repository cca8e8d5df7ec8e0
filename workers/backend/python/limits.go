package python

import (
	"strconv"
	"strings"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// limits are what a model's parameters say of its processes.
type limits struct {
	execute    time.Duration // longest time of a batch; 0: none
	initialize time.Duration // longest time of import and initialize
	rss        int64         // bytes of resident memory, beyond which a process is replaced; 0: none
	requests   uint64        // after so many requests a process is replaced; 0: none
	retry      bool          // requests whose process died are executed once more
	output     string        // the level of the lines that its processes write; no: they are dropped
	isolate    bool          // its processes see no memory of others
	together   int           // instances of a group and device that share a process
	asynced    int           // batches of an async model that is not decoupled, at a time
}

const (
	initializeTimeout = 10 * time.Minute // where the model says none
	finalizeTimeout   = 30 * time.Second
	debugTimeout      = 24 * time.Hour // in place of initializeTimeout, while a debugger may stop the model
	mostTogether      = 256            // instances of a process
)

// readLimits reads the parameters of the config.
func (m *model) readLimits() (limits, error) {
	l := limits{initialize: initializeTimeout, retry: true, asynced: 1, together: 1}
	var first error
	number := func(name string) (int64, bool) {
		text := m.text(name)
		if text == "" {
			return 0, false
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if (err != nil || n <= 0) && first == nil {
			first = infer.Errorf(infer.InvalidArg, "model '%s': parameter %s is '%s', want a positive number",
				m.spec.Name, name, text)
		}
		return n, err == nil
	}
	if n, ok := number("EXECUTE_TIMEOUT_MS"); ok {
		l.execute = time.Duration(n) * time.Millisecond
	}
	if n, ok := number("INITIALIZE_TIMEOUT_MS"); ok {
		l.initialize = time.Duration(n) * time.Millisecond
	}
	if n, ok := number("MAX_RSS_MB"); ok {
		l.rss = n << 20
	}
	if n, ok := number("MAX_REQUESTS"); ok {
		l.requests = uint64(n)
	}
	if n, ok := number("CONCURRENT_BATCHES"); ok {
		l.asynced = int(n)
	}
	if n, ok := number("INSTANCES_IN_PROCESS"); ok {
		l.together = int(min(n, mostTogether))
	}
	said := func(name string, value *bool) {
		switch text := m.text(name); text {
		case "":
		case "yes", "no":
			*value = text == "yes"
		default:
			first = infer.Errorf(infer.InvalidArg, "model '%s': parameter %s is '%s', want yes or no", m.spec.Name,
				name, text)
		}
	}
	switch l.output = m.text("LOG_STDOUT"); l.output {
	case "", "info", "warning", "error", "verbose", "no":
	default:
		first = infer.Errorf(infer.InvalidArg,
			"model '%s': parameter LOG_STDOUT is '%s', want info, warning, error, verbose or no", m.spec.Name, l.output)
	}
	said("RETRY", &l.retry)
	said("ISOLATE", &l.isolate)
	if text := m.text("DEBUG"); text != "" {
		port, err := strconv.ParseUint(strings.TrimPrefix(text, "wait:"), 10, 16)
		if (err != nil || port == 0) && first == nil {
			first = infer.Errorf(infer.InvalidArg, "model '%s': parameter DEBUG is '%s', want a port or wait:<port>",
				m.spec.Name, text)
		}
		l.execute, l.initialize = 0, debugTimeout // somebody may look at it
		l.rss, l.requests = 0, 0                  // the next process could not have the port
	}
	if (l.rss > 0 || l.requests > 0) && m.stateful && first == nil {
		first = infer.Errorf(infer.InvalidArg,
			"model '%s': its processes have the states of sequences, and can't be replaced by MAX_RSS_MB or MAX_REQUESTS",
			m.spec.Name)
	}
	return l, first
}
