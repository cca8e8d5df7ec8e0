package grpcapi

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/sluice-serve/sluice/gateway/h2"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/admin"
)

// The keys of trailing metadata that say what the response cache did for an answer, with
// the values of the HTTP headers of those names.
const (
	CacheStatusKey = "cache-status"
	AgeKey         = "age"
)

// cacheTrailer says what the response cache did; models without one say nothing.
func cacheTrailer(ctx context.Context, r *infer.Response) {
	if r.Cache == infer.CacheNone {
		return
	}
	age := ""
	if r.Cache == infer.CacheHit {
		age = strconv.FormatInt(int64(r.Age/time.Second), 10)
	}
	if st, ok := h2.FromContext(ctx); ok {
		st.SetTrailer(CacheStatusKey, r.Cache.Header())
		if age != "" {
			st.SetTrailer(AgeKey, age)
		}
		return
	}
	md := metadata.MD{CacheStatusKey: {r.Cache.Header()}}
	if age != "" {
		md[AgeKey] = []string{age}
	}
	// It fails without a transport only, and then nobody reads it.
	_ = grpc.SetTrailer(ctx, md)
}

// adminService is the Admin service over a Service.
type adminService struct {
	admin.UnimplementedAdminServer
	s *Service
}

// PurgeCache removes answers from the response cache.
func (a adminService) PurgeCache(ctx context.Context, r *admin.PurgeCacheRequest) (*admin.PurgeCacheResponse, error) {
	return answer(ctx, a.s, "PurgeCache", infer.ActionModelRepository, r.Model, r.Version, func() (*admin.PurgeCacheResponse, error) {
		n, err := a.s.control.PurgeCache(ctx, r.Model, r.Version, r.Tag)
		return &admin.PurgeCacheResponse{Purged: n}, err
	})
}
