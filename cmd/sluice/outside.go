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
// environment for repository agents and for the clouds' credentials, and
// SIGHUP for the access log.
func outside(c *gateway.Config) {
	otel.SetLogger(exporterLog(os.Stderr))
	c.Repository.Agents.Environ = agent.Environment(os.Environ())
	c.Repository.Cloud.Env = os.LookupEnv
	c.Repository.Cloud.Open = drivers.New(os.LookupEnv)
	if c.Observe.AccessLog.On() { // else SIGHUP ends the process, as it does by default
		hangup := make(chan os.Signal, 1)
		signal.Notify(hangup, syscall.SIGHUP)
		c.Observe.Reopen = hangup
	}
}
