package main

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-serve/sluice/proto/inference"
	"github.com/sluice-serve/sluice/test/checked"
)

// versioned is what the numbers of a model are divided by to get its version.
const versioned = 1000

// model is one that adds a number to its input. It is for many goroutines.
type model struct {
	spec          string // NAME or NAME/VERSION
	name, version string

	mu sync.Mutex
	// until says of each number when it was forbidden; zero: it is allowed.
	until map[int32]time.Time
}

// newModel reads NAME[/VERSION]=NUMBER[:NUMBER…].
func newModel(text string) (*model, error) {
	spec, numbers, ok := strings.Cut(text, "=")
	if !ok || spec == "" {
		return nil, fmt.Errorf("-models: %q: want NAME[/VERSION]=NUMBER[:NUMBER…]", text)
	}
	m := &model{spec: spec, until: map[int32]time.Time{}}
	m.name, m.version, _ = strings.Cut(spec, "/")
	for number := range strings.SplitSeq(numbers, ":") {
		n, err := strconv.ParseInt(number, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("-models: %q: %w", text, err)
		}
		m.until[int32(n)] = time.Time{}
	}
	return m, nil
}

// permit allows or forbids a number from now on.
func (m *model) permit(n int32, allow bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if allow {
		m.until[n] = time.Time{}
	} else {
		m.until[n] = time.Now()
	}
}

// path is where the model is asked over HTTP.
func (m *model) path() string {
	if m.version == "" {
		return "/v2/models/" + m.name + "/infer"
	}
	return "/v2/models/" + m.name + "/versions/" + m.version + "/infer"
}

// message is a request over gRPC.
func (m *model) message(in []int32) *inference.ModelInferRequest {
	message := checked.Message(m.name, "INPUT0", 1, in)
	message.ModelVersion = m.version
	return message
}

// check compares an answer to a call that began at a time with what the model may add.
func (m *model) check(in, out []int32, version int, begin time.Time) error {
	n, err := checked.Offset(in, out)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	until, known := m.until[n]
	if !known || !until.IsZero() && until.Before(begin) {
		return checked.Wrongf("%s: version %d added %d", m.spec, version, n)
	}
	if n >= versioned && int(n)/versioned != version || m.version != "" && strconv.Itoa(version) != m.version {
		return checked.Wrongf("%s: version %d says that it has added %d", m.spec, version, n)
	}
	return nil
}
