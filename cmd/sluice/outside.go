package main

import (
	"os"

	"github.com/sluice-serve/sluice/gateway"
	"github.com/sluice-serve/sluice/gateway/repository/agent"
	"github.com/sluice-serve/sluice/gateway/repository/cloud/drivers"
)

// outside gives the configuration what it needs of the process's surroundings: the
// environment for repository agents and for the clouds' credentials.
func outside(c *gateway.Config) {
	c.Repository.Agents.Environ = agent.Environment(os.Environ())
	c.Repository.Cloud.Env = os.LookupEnv
	c.Repository.Cloud.Open = drivers.New(os.LookupEnv)
}
