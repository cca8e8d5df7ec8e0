package repository

import (
	"fmt"
	"maps"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/gateway/modelconfig"
	"github.com/sluice-serve/sluice/gateway/repository/backends"
	"github.com/sluice-serve/sluice/proto/worker"
)

// findBackend finds what runs a version: a worker's backend of the config's name, or where
// none has it, or the config's runtime asks for another one, the file that makes it. opts
// then has the backend as if a worker had it, or the reason why there is none.
func (p *Plan) findBackend(opts *modelconfig.Options, version int64) backends.Found {
	cfg := p.Config
	own := backends.Found{Runner: cfg.Backend}
	if opts.Backends == nil || cfg.Backend == "" || cfg.Platform == modelconfig.PlatformEnsemble {
		return own
	}
	usual := cfg.Runtime == "" || backends.Usual(opts.Known, cfg.Backend, cfg.Runtime)
	if opts.Backends[cfg.Backend] != nil && usual {
		return own
	}
	found, err := backends.Find(p.cfg.Backends, opts.Known, backends.Query{Backend: cfg.Backend, Runtime: cfg.Runtime,
		Model: p.Folder.Name, ModelDir: p.Folder.Dir, Version: version})
	runner := opts.Backends[found.Runner]
	if err == nil && runner == nil {
		err = fmt.Errorf("the file of backend '%s' is run by backend '%s'", cfg.Backend, found.Runner)
	}
	all := maps.Clone(opts.Backends)
	if err != nil {
		delete(all, cfg.Backend) // its own is not what the config asks for
		opts.Backends, opts.NoBackend = all, err
		return own
	}
	all[cfg.Backend] = hosted(cfg.Backend, runner)
	opts.Backends = all
	return found
}

// findAnyBackend is findBackend for the newest version that has a backend: what is checked
// before versions are chosen must not fail for the sake of one.
func (p *Plan) findAnyBackend(opts *modelconfig.Options) {
	before := *opts
	versions := p.Existing
	if len(versions) == 0 {
		versions = []int64{1} // which is not there: the other folders count
	}
	for i := len(versions) - 1; i >= 0; i-- {
		*opts = before
		if p.findBackend(opts, versions[i]); opts.NoBackend == nil {
			return
		}
	}
}

// hosted is a backend by what the one that runs it says of itself.
func hosted(name string, runner *worker.Backend) *worker.Backend {
	b := proto.CloneOf(runner)
	b.Name, b.Formats, b.Runtimes = name, nil, nil
	return b
}
