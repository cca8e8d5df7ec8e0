package main

import (
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"go.opentelemetry.io/otel"

	"github.com/sluice-serve/sluice/gateway"
	"github.com/sluice-serve/sluice/gateway/repository/agent"
	"github.com/sluice-serve/sluice/gateway/repository/cloud/drivers"
	"github.com/sluice-serve/sluice/workers/backend/triton"
)

// outside gives the configuration what it needs of the process's surroundings: the
// environment for repository agents and for the clouds' credentials, and SIGHUP for the
// files of the log and of the access log. What is known of Triton's backends is data of
// the workers' side (package triton), so that the gateway knows no backend by itself.
func outside(c *gateway.Config) (err error) {
	if c.Repository.Known, err = triton.Backends(); err != nil {
		return err
	}
	if dir := &c.Repository.Backends.Directory; *dir != "" {
		if *dir, err = filepath.Abs(*dir); err != nil {
			return err
		}
	}
	otel.SetLogger(exporterLog(os.Stderr))
	c.Repository.Agents.Environ = agent.Environment(os.Environ())
	c.Repository.Cloud.Env = os.LookupEnv
	c.Repository.Cloud.Open = drivers.New(os.LookupEnv)
	c.Observe.ReopenLog = hangups(c.Log.File != "")
	c.Observe.Reopen = hangups(c.Observe.AccessLog.On())
	return nil
}

// hangups is a channel of SIGHUP for the owner of one file. Without any file the signal
// ends the process, as it does by default.
func hangups(file bool) <-chan os.Signal {
	if !file {
		return nil
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	return hangup
}
