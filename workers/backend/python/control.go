package python

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"strings"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/python/internal/channel"
)

// What CONTROL asks for.
const (
	controlLoad = iota + 1
	controlUnload
	controlReady
	controlMetric
)

// mostControls bounds the model control of a process that is under way.
const mostControls = 64

// control answers CONTROL, on a goroutine of its own where that takes the gateway.
func (r *run) control(id uint64, d *channel.Decoder) error {
	what, parent, name, argument := d.U8(), d.U64(), d.String(), d.String()
	files, blocks, err := r.files(d)
	free := func() {
		for _, s := range blocks {
			r.channel.Exchange.FreeAnswered(s)
		}
	}
	if err != nil {
		return err // the process is killed, and its memory goes with it
	}
	// Only a load on a goroutine of its own reads files; everything else is done with them here.
	passed := false
	defer func() {
		if !passed {
			free()
		}
	}()
	switch {
	case what == controlMetric:
		v, err := r.model().metrics.value(series{name, argument})
		return r.replySoon(id, controlAnswer(&v, err))
	case what < controlLoad || what > controlMetric:
		return fmt.Errorf("%w: model control %d", channel.ErrCorrupt, what)
	}
	gateway, err := r.gateway(parent)
	if err != nil {
		return r.replySoon(id, controlAnswer(nil, err))
	}
	if r.controls.Add(1) > mostControls {
		r.controls.Add(-1)
		return r.replySoon(id, controlAnswer(nil, infer.Refusef(infer.Unavailable, infer.ReasonQueueFull,
			"the process has %d calls of model control under way, the most that it may have", mostControls)))
	}
	passed = true
	r.users.Go(func() {
		defer r.controls.Add(-1)
		defer free()
		var value *float64
		var err error
		switch what {
		case controlLoad:
			err = gateway.Load(r.life, name, argument, files)
		case controlUnload:
			err = gateway.Unload(r.life, name, argument == "1")
		case controlReady:
			var ready bool
			if ready, err = gateway.Ready(r.life, name, argument); err == nil {
				value = new(float64)
				if ready {
					*value = 1
				}
			}
		}
		if err := r.reply(id, controlAnswer(value, err)); err != nil && context.Cause(r.life) == nil {
			r.log.Error("model control could not be answered", "error", err)
		}
	})
	return nil
}

// files reads the files of a load: by their paths in the model's folder, in the blocks that the process has filled.
func (r *run) files(d *channel.Decoder) (files map[string][]byte, blocks []channel.Segment, err error) {
	for range d.Count(d.U32(), 4+17) {
		name, s := d.String(), d.Segment()
		if d.Err() != nil {
			return nil, nil, d.Err()
		}
		data, err := r.channel.Exchange.Answered(s)
		if err != nil {
			return nil, nil, err
		}
		if files == nil {
			files = map[string][]byte{}
		}
		files[strings.TrimPrefix(name, "file:")] = data
		blocks = append(blocks, s)
	}
	return files, blocks, d.Err()
}

// controlAnswer is the reply to CONTROL: an error, or a number where one was asked for.
func controlAnswer(value *float64, failed error) []byte {
	var e channel.Encoder
	switch {
	case failed != nil:
		e.U8(0)
		e.String(failed.Error())
	case value != nil:
		e.U8(1)
		e.U64(math.Float64bits(*value))
	default:
		e.U8(1)
		e.String("")
	}
	return e.Body()
}

// line writes a line of the model's into the gateway's log.
func (r *run) line(d *channel.Decoder) error {
	level, file, number, text := d.U8(), d.String(), d.U32(), d.String()
	if d.Err() != nil {
		return d.Err()
	}
	text = fmt.Sprintf("%s:%d] %s", filepath.Base(file), number, text)
	at := backend.LogVerbose
	switch level {
	case 1:
		at = backend.LogError
	case 2:
		at = backend.LogWarning
	case 4:
		at = backend.LogInfo
	}
	if g := r.model().spec.Gateway; g != nil {
		g.Log(at, text)
	} else {
		r.log.Info("model output", "level", at, "line", text)
	}
	return nil
}
