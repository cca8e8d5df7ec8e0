package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-serve/sluice/proto/inference"
	"github.com/sluice-serve/sluice/test/checked"
)

// betweenChanges is the mean time between two changes of one model.
const betweenChanges = 700 * time.Millisecond

// control loads, reloads and unloads one model by chance. It is the only one that does.
func (c *churn) control(m *reloaded) func(*server, *rand.Rand) (exchange, func()) {
	return func(s *server, rng *rand.Rand) (exchange, func()) {
		l := &loader{c: c, m: m, rng: rng, web: s.web()}
		conn, err := s.connect()
		if err != nil {
			return func(context.Context) error { return err }, func() {}
		}
		l.client = inference.NewGRPCInferenceServiceClient(conn)
		return l.change, func() {
			l.web.CloseIdleConnections()
			_ = conn.Close() // of no further use
		}
	}
}

// loader is the client that changes one model.
type loader struct {
	c      *churn
	m      *reloaded
	rng    *rand.Rand
	web    *http.Client
	client inference.GRPCInferenceServiceClient
}

// change makes one change, and wants it to succeed where it must.
func (l *loader) change(ctx context.Context) error {
	if !pause(ctx, time.Duration(l.rng.Int64N(int64(2*betweenChanges)))) {
		return ctx.Err()
	}
	if !l.m.adds {
		if l.rng.IntN(4) == 0 {
			if err := l.unload(ctx); err != nil {
				return err
			}
			pause(ctx, time.Duration(l.rng.Int64N(int64(100*time.Millisecond))))
			return l.c.loadFolder(ctx, l.m)
		}
		return l.touched(ctx)
	}
	switch l.rng.IntN(12) {
	case 0, 1:
		return l.touched(ctx)
	case 2:
		return l.c.loadFolder(ctx, l.m)
	case 3, 4:
		if err := l.unload(ctx); err != nil {
			return err
		}
		pause(ctx, time.Duration(l.rng.Int64N(int64(200*time.Millisecond))))
		return l.load(ctx, l.contents())
	case 5:
		return l.race(ctx)
	case 6:
		return l.leave(ctx)
	case 7:
		return l.broken(ctx)
	case 8:
		return l.loadIdentity(ctx)
	}
	return l.load(ctx, l.contents())
}

// contents are the versions of a load to come.
func (l *loader) contents() map[int]int32 {
	versions := map[int]int32{1: l.m.next()}
	if l.rng.IntN(3) == 0 {
		versions[2] = l.m.next()
	}
	return versions
}

// load loads files of its own in place of the folder's.
func (l *loader) load(ctx context.Context, versions map[int]int32) error {
	change := l.m.history.begin(versions)
	err := l.send(ctx, adderConfig(l.m.name, false, l.rng), files(versions))
	l.m.history.finish(change, err == nil)
	l.c.notes.add("loads with files")
	return wrap("load", err)
}

func files(versions map[int]int32) map[string][]byte {
	out := map[string][]byte{}
	for v, k := range versions {
		out[fmt.Sprintf("file:%d/model.onnx", v)] = adderFile(k)
	}
	return out
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// loadIdentity loads the identity backend over the folder's files, with a delay.
func (l *loader) loadIdentity(ctx context.Context) error {
	l.m.reading.Lock()
	defer l.m.reading.Unlock()
	change := l.m.history.begin(map[int]int32{1: 0})
	err := l.send(ctx, adderConfig(l.m.name, true, l.rng), nil)
	l.m.history.finish(change, err == nil)
	l.c.notes.add("loads of another backend")
	return wrap("load of identity", err)
}

// send is a load call over one of the protocols.
func (l *loader) send(ctx context.Context, config string, files map[string][]byte) error {
	if l.rng.IntN(2) == 0 {
		p := map[string]*inference.ModelRepositoryParameter{"config": {ParameterChoice: &inference.ModelRepositoryParameter_StringParam{StringParam: config}}}
		for name, data := range files {
			p[name] = &inference.ModelRepositoryParameter{ParameterChoice: &inference.ModelRepositoryParameter_BytesParam{BytesParam: data}}
		}
		_, err := l.client.RepositoryModelLoad(ctx, &inference.RepositoryModelLoadRequest{ModelName: l.m.name, Parameters: p})
		return err
	}
	p := map[string]string{"config": config}
	for name, data := range files {
		p[name] = base64.StdEncoding.EncodeToString(data)
	}
	body, err := json.Marshal(map[string]any{"parameters": p})
	if err != nil {
		return err
	}
	_, _, err = checked.Post(ctx, l.web, l.c.s.url("/v2/repository/models/"+l.m.name+"/load"), body)
	return err
}

// unload unloads the model.
func (l *loader) unload(ctx context.Context) error {
	change := l.m.history.begin(nil)
	var err error
	if l.rng.IntN(2) == 0 {
		_, err = l.client.RepositoryModelUnload(ctx, &inference.RepositoryModelUnloadRequest{ModelName: l.m.name})
	} else {
		_, _, err = checked.Post(ctx, l.web, l.c.s.url("/v2/repository/models/"+l.m.name+"/unload"), nil)
	}
	l.m.history.finish(change, err == nil)
	l.c.notes.add("unloads")
	return wrap("unload", err)
}

// race loads and unloads at once; either may come first, and end the other.
func (l *loader) race(ctx context.Context) error {
	first, second, unload := l.contents(), l.contents(), l.m.history.begin(nil)
	changes := []*change{l.m.history.begin(first), l.m.history.begin(second)}
	config, own := adderConfig(l.m.name, false, l.rng), l.c.s.web()
	defer own.CloseIdleConnections()
	var wg sync.WaitGroup
	for i, versions := range []map[int]int32{first, second} {
		wg.Go(func() {
			p := map[string]string{"config": config}
			for name, data := range files(versions) {
				p[name] = base64.StdEncoding.EncodeToString(data)
			}
			body, err := json.Marshal(map[string]any{"parameters": p})
			if err == nil {
				_, _, err = checked.Post(ctx, own, l.c.s.url("/v2/repository/models/"+l.m.name+"/load"), body)
			}
			l.m.history.finish(changes[i], err == nil)
		})
	}
	_, _, err := checked.Post(ctx, l.web, l.c.s.url("/v2/repository/models/"+l.m.name+"/unload"), nil)
	l.m.history.finish(unload, err == nil)
	wg.Wait()
	l.c.notes.add("loads and unloads at once")
	return wrap("load after a race", l.load(ctx, l.contents()))
}

// leave leaves a load call, which the server ends all the same or never begins.
func (l *loader) leave(ctx context.Context) error {
	own, cancel := context.WithTimeout(ctx, time.Duration(l.rng.Int64N(int64(15*time.Millisecond))))
	defer cancel()
	versions := l.contents()
	change := l.m.history.begin(versions)
	err := l.send(own, adderConfig(l.m.name, false, l.rng), files(versions))
	if err == nil {
		l.m.history.finish(change, true)
		return nil
	}
	l.m.history.abandon(change)
	l.c.notes.add("loads left")
	return nil
}

// broken loads what can't be loaded: the call must fail, and what serves go on.
func (l *loader) broken(ctx context.Context) error {
	versions := l.contents()
	change := l.m.history.begin(versions)
	config, bad := adderConfig(l.m.name, false, l.rng), files(versions)
	switch l.rng.IntN(4) {
	case 0:
		bad["file:1/model.onnx"] = []byte("no model")
	case 1:
		config = strings.Replace(config, "onnxruntime", "nonesuch", 1)
	case 2:
		config = config[:len(config)-1]
	case 3:
		bad["file:../../escape"] = []byte("out")
	}
	err := l.send(ctx, config, bad)
	l.m.history.withdraw(change)
	l.c.notes.add("loads that fail")
	if err == nil {
		return checked.Wrongf("%s: a load that must fail has succeeded", l.m.name)
	}
	return ctx.Err()
}

// touched changes the folder, and loads it.
func (l *loader) touched(ctx context.Context) error {
	m := l.m
	m.reading.Lock()
	err := m.touch(l.rng)
	m.reading.Unlock()
	if err != nil {
		return err
	}
	return l.c.loadFolder(ctx, m)
}

// touch makes the folder other than it was. m.reading is held.
func (m *reloaded) touch(rng *rand.Rand) error {
	if m.adds {
		k := m.next()
		m.found = map[int]int32{1: k}
		return replace(filepath.Join(m.folder, "1", "model.onnx"), adderFile(k))
	}
	text := churned()[m.name] + fmt.Sprintf("parameters { key: \"turn\" value { string_value: \"%d\" } }\n", rng.Uint64())
	return replace(filepath.Join(m.folder, "config.pbtxt"), []byte(text))
}

// replace puts a whole file in the place of another at once.
func replace(path string, data []byte) error {
	next := filepath.Join(filepath.Dir(path), ".next")
	return errors.Join(os.WriteFile(next, data, 0o644), os.Rename(next, path))
}

// loadFolder loads what the folder has. An ensemble's load may load its steps, too.
func (c *churn) loadFolder(ctx context.Context, m *reloaded) error {
	m.reading.Lock()
	defer m.reading.Unlock()
	var also []*change
	for _, step := range m.steps {
		step.reading.Lock()
		defer step.reading.Unlock()
		also = append(also, step.history.begin(step.found))
	}
	change, begin := m.history.begin(m.found), time.Now()
	web := c.s.web()
	defer web.CloseIdleConnections()
	_, _, err := checked.Post(ctx, web, c.s.url("/v2/repository/models/"+m.name+"/load"), nil)
	m.history.finish(change, err == nil)
	for i, step := range m.steps {
		step.history.finish(also[i], false) // it may have been loaded or not
	}
	if err != nil && !m.stepsServed(begin, time.Now()) {
		c.notes.add("loads of an ensemble without its steps")
		return nil
	}
	c.notes.add("loads of the folder")
	return wrap("load of the folder", err)
}

// inRegion is a question's request that has its tensors in a region.
func (q question) inRegion(region string, in, out int64) []byte {
	n := strconv.Itoa(4 * len(q.in))
	return fmt.Appendf(nil, `{"inputs":[{"name":"INPUT0","shape":[%d,%d],"datatype":"INT32","parameters":{"shared_memory_region":%q,"shared_memory_offset":%d,"shared_memory_byte_size":%s}}],`+
		`"outputs":[{"name":"OUTPUT0","parameters":{"shared_memory_region":%q,"shared_memory_offset":%d,"shared_memory_byte_size":%s}}]}`,
		len(q.in)/width, width, region, in, n, region, out, n)
}
