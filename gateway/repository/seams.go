package repository

import (
	"context"

	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
)

// Agents run the repository agents that a model's config names; gateway/repository/agent
// fits it. Its methods may be called for several models at once.
// Source: message ModelRepositoryAgents, proto/modelconfig/model_config.proto.
type Agents interface {
	// Load runs the event LOAD through the model's agents, in their order, after its
	// config was read and before anything else of its folder is. An error fails the
	// load; nobody is told of that model's further events then.
	Load(ctx context.Context, model AgentModel) (AgentRun, error)
}

// AgentModel is a model that is about to be loaded.
type AgentModel struct {
	Name   string
	Dir    string                // absolute: the model's folder
	Config *configpb.ModelConfig // as it was written, or given with the load call; read-only
	// Scratch makes an empty folder that is gone with this process, however that ends.
	Scratch func() (string, error)
}

// AgentRun is what agents were told of one load of a model. A reload makes a new one
// before the old one ends.
type AgentRun interface {
	// Dir is the folder to read in place of the model's: an absolute path, the same
	// where no agent replaced it. It must stay as it is until UnloadComplete or LoadFail
	// was told.
	Dir() string
	// Tell tells what became of the load, in the order of the events. The error is only
	// logged: what has happened has happened.
	Tell(ctx context.Context, event AgentEvent) error
}

// AgentEvent is an event in a model's life, in the words of the original's agents.
// Source: TRITONREPOAGENT_ActionType of the original.
type AgentEvent string

// The events. After LOAD comes LOAD_COMPLETE or LOAD_FAIL; after LOAD_COMPLETE, once,
// UNLOAD and UNLOAD_COMPLETE.
const (
	EventLoad           AgentEvent = "LOAD"
	EventLoadComplete   AgentEvent = "LOAD_COMPLETE"
	EventLoadFail       AgentEvent = "LOAD_FAIL"
	EventUnload         AgentEvent = "UNLOAD"
	EventUnloadComplete AgentEvent = "UNLOAD_COMPLETE"
)

// Stores bring repositories that are elsewhere to folders of this machine;
// gateway/repository/cloud fits it. Its methods may be called at the same time.
type Stores interface {
	// Remote says that a repository's path is no folder of this machine.
	Remote(path string) bool
	// Sync brings the repository to a folder of this machine, or only one model where
	// model is not "", and gives that folder: it holds a folder for each model that is
	// there and whole. A model's folder does not change while a version is loaded from
	// it, but for being replaced as a whole: what has changed has another size or time of
	// modification. A model that is gone has no folder any more.
	// With an error dir may still be given: it holds all but what the error names.
	Sync(ctx context.Context, path, model string) (dir string, err error)
}
