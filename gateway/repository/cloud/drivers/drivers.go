// Package drivers opens the buckets of cloud.Location through gocloud.dev/blob with the
// clouds' own libraries. Only cmd imports it: it is what makes the program large.
//
// The libraries look at the environment, at profiles and at the machine's identity
// themselves, where a cloud.Credential leaves something open.
package drivers

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/sluice-serve/sluice/gateway/repository/cloud"
)

// New gives a cloud.Open for all schemes. env looks a variable of the environment up.
func New(env func(string) (string, bool)) cloud.Open {
	return func(ctx context.Context, l cloud.Location, c cloud.Credential) (*cloud.Bucket, error) {
		switch l.Scheme {
		case cloud.S3:
			return openS3(ctx, l, c.S3)
		case cloud.GCS:
			return openGCS(ctx, l, c.File, env)
		case cloud.Azure:
			return openAzure(ctx, l, c.Azure, env)
		}
		return nil, fmt.Errorf("no cloud has the scheme '%s'", l.Scheme)
	}
}

// transport is the HTTP transport for the clouds.
func transport() *http.Transport {
	t := &http.Transport{Proxy: http.ProxyFromEnvironment}
	tune(t)
	return t
}

// tune sets what all have in common: objects are large and come over few connections,
// and a host that is away is found out soon.
func tune(t *http.Transport) {
	t.DialContext = (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	t.TLSHandshakeTimeout = 5 * time.Second
	t.ResponseHeaderTimeout = 30 * time.Second
	t.MaxIdleConnsPerHost = 16
	t.IdleConnTimeout = 90 * time.Second
	t.DisableCompression = true // bytes as they are stored
}
