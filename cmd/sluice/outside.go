package main

import (
	"os"
	"os/signal"
	"syscall"

	"go.opentelemetry.io/otel"

	"github.com/sluice-serve/sluice/gateway"
	"github.com/sluice-serve/sluice/gateway/repository/agent"
	"github.com/sluice-serve/sluice/gateway/repository/cloud/drivers"
)

// outside gives the configuration what it needs of the process's surroundings: the
// environment for repository agents and for the clouds' credentials, and SIGHUP for the
// files of the log and of the access log.
func outside(c *gateway.Config) {
	otel.SetLogger(exporterLog(os.Stderr))
	c.Repository.Agents.Environ = agent.Environment(os.Environ())
	c.Repository.Cloud.Env = os.LookupEnv
	c.Repository.Cloud.Open = drivers.New(os.LookupEnv)
	c.Observe.ReopenLog = hangups(c.Log.File != "")
	c.Observe.Reopen = hangups(c.Observe.AccessLog.On())
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
