package flags

import "github.com/sluice-serve/sluice/gateway/auth"

// identity are the flags on who calls and what they may do.
func (s *Serve) identity() []flag {
	a := &s.Config.Auth
	restricted := func(name, kind string, to *[]auth.Restriction) flag {
		return flag{name: name, arg: "string:string=string", repeat: true, help: "<categories>:<key>=<value>: calls of these categories need the header " +
			"<key> with <value>. Categories, divided by commas: health, metadata, inference, shared-memory, model-config, model-repository, statistics, " +
			"trace, logging. Over gRPC the header is triton-grpc-protocol-<key>. A value of @FILE is read from the file, which keeps it out of the " +
			"process list; so does the environment.", set: func(v string) error {
			r, err := auth.ParseRestriction(name, kind, v, *to)
			if err == nil {
				*to = append(*to, r)
			}
			return err
		}}
	}
	return []flag{
		{name: "identity", arg: "string", help: "YAML file that says how callers are known: API keys, tokens, client certificates, proxies that " +
			"are trusted (docs/0011-identity.md).", set: stringInto(&a.Identity)},
		{name: "api-keys", arg: "string", help: "File of API keys' digests; 'sluice keys new NAME' makes its lines.", set: stringInto(&a.APIKeys)},
		{name: "policy", arg: "string", help: "YAML file of who may do what on which models; what it does not give is denied.",
			set: stringInto(&a.Policy)},
		{name: "allow-remote-control", arg: "boolean", def: "false", help: "Without --policy: take calls that load and unload models from other " +
			"hosts too.", set: boolInto(&a.AllowRemoteControl)},
		restricted("http-restricted-api", "api", &a.HTTP),
		restricted("grpc-restricted-protocol", "protocol", &a.GRPC),
	}
}
