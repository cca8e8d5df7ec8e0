package infer

// Principal is who calls, as far as it was proved. It is shared by calls and read-only.
type Principal struct {
	// Name is unique among the principals of one gateway: what policies, limits, logs and
	// spans say. "" is somebody who showed nothing.
	Name string
	// Tenant is the scope within which answers and IDs of sequences may be shared; see
	// Request.Tenant.
	Tenant string
	// Groups are further names that a policy may speak of.
	Groups []string
	// Method is how the caller proved it: "api-key", "jwt", "certificate", "forwarded";
	// "" where nothing was shown.
	Method string
}
