package plane

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sluice-serve/sluice/xds"
)

// state is the file of the targets that routes have.
type state struct {
	file    string // "": none
	written []byte // what it holds
}

// restore tells the server what an earlier control plane left. A file that can't be read
// is logged and passed over: then new targets count at once.
func (p *Plane) restore() {
	if p.state.file == "" {
		return
	}
	data, err := os.ReadFile(p.state.file)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var routes []xds.Route
	if err == nil {
		err = json.Unmarshal(data, &routes)
	}
	if err != nil {
		p.log.Warn("control plane: the targets of an earlier one are not known", "file", p.state.file, "error", err)
		return
	}
	p.state.written = data
	p.server.Restore(routes)
}

// remember writes the targets that count when they have changed.
func (p *Plane) remember(routes []xds.Route) {
	if p.state.file == "" {
		return
	}
	kept := make([]xds.Route, len(routes))
	for i := range routes {
		kept[i] = xds.Route{Model: routes[i].Model, Version: routes[i].Version, Targets: routes[i].Targets}
	}
	data, err := json.Marshal(kept)
	if err == nil && !bytes.Equal(data, p.state.written) {
		err = replace(p.state.file, data)
	}
	if err != nil {
		p.log.Warn("control plane: a restart would not know the targets of routes", "file", p.state.file, "error", err)
		return
	}
	p.state.written = data
}

// replace writes a file that appears whole. Its part has a name that nobody can know, so
// that a link which another user made is never followed.
func replace(file string, data []byte) error {
	part, err := os.CreateTemp(filepath.Dir(file), ".targets-*")
	if err != nil {
		return err
	}
	_, err = part.Write(data)
	err = errors.Join(err, part.Close())
	if err == nil {
		err = os.Rename(part.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(part.Name()))
	}
	return nil
}
