// Package agent runs repository agents: what model_repository_agents of a model's
// config.pbtxt names, in order, when the model is loaded and unloaded. gateway/repository
// calls it around a model's life.
//
// An agent may refuse the load, or put another folder in the place of the model's. The
// agent "checksum" is built in (checksum.go); every other one is an executable below
// --repoagent-directory that reads an event from its standard input and answers on its
// standard output (process.go, docs/0007-agents-and-cloud.md). The original's shared
// libraries (libtritonrepoagent_<name>.so) are not loaded.
//
// One Life belongs to one load of one model. Its events come in this order, as the
// original's (docs/customization_guide/repository_agents.md there):
//
//	LOAD, in order ── all succeeded ──► LOAD_COMPLETE, in reverse ──► UNLOAD, in order ──► UNLOAD_COMPLETE, in reverse
//	       └───────── one failed, or the load did ──► LOAD_FAIL, in reverse, for all that were asked
//
// Agents and lives may be used by any number of goroutines.
package agent
