package repository

// VersionText is the version's number in decimal, as responses and traces name it.
func (m *Model) VersionText() string { return m.versionText }
