package webhook

import "fmt"

// Refusal is why a destination was refused.
type Refusal struct {
	Reason BlockedReason
	Detail string // in words for the customer; tells nothing of our network
}

func (r *Refusal) Error() string { return r.Detail }

func refuse(reason BlockedReason, format string, args ...any) error {
	return &Refusal{Reason: reason, Detail: fmt.Sprintf(format, args...)}
}

// BlockedReason is the one bounded word for a refusal, which log, metric, API
// and attempt share; "": nothing was refused.
type BlockedReason string

// The words. Those of the URL's text come first, then those of an address.
const (
	BlockedURLTooLong    BlockedReason = "url_too_long"
	BlockedURLCharacters BlockedReason = "url_characters"
	BlockedURLSyntax     BlockedReason = "url_syntax"
	BlockedHTTPSRequired BlockedReason = "https_required"
	BlockedUserinfo      BlockedReason = "userinfo"
	BlockedFragment      BlockedReason = "fragment"
	BlockedNoHost        BlockedReason = "no_host"
	BlockedHostName      BlockedReason = "host_name" // not a name at all
	BlockedIPSyntax      BlockedReason = "ip_syntax"
	BlockedPrivateName   BlockedReason = "private_name"
	BlockedSingleLabel   BlockedReason = "single_label"
	BlockedOwnHost       BlockedReason = "own_host"
	BlockedPort          BlockedReason = "port"
	BlockedNetwork       BlockedReason = "network" // not TCP
	BlockedZone          BlockedReason = "zone"
	BlockedMapped        BlockedReason = "mapped_address"
	BlockedUnspecified   BlockedReason = "unspecified_address"
	BlockedLoopback      BlockedReason = "loopback_address"
	BlockedPrivate       BlockedReason = "private_address"    // RFC 1918 and fc00::/7, Fly's 6PN among them
	BlockedLinkLocal     BlockedReason = "link_local_address" // cloud metadata among them
	BlockedMulticast     BlockedReason = "multicast_address"
	BlockedSpecial       BlockedReason = "special_address" // every other one that is not public
)

// BlockedReasons are all of them, as the document lists them.
var BlockedReasons = []BlockedReason{
	BlockedURLTooLong, BlockedURLCharacters, BlockedURLSyntax, BlockedHTTPSRequired, BlockedUserinfo, BlockedFragment, BlockedNoHost,
	BlockedHostName, BlockedIPSyntax, BlockedPrivateName, BlockedSingleLabel, BlockedOwnHost, BlockedPort, BlockedNetwork, BlockedZone,
	BlockedMapped, BlockedUnspecified, BlockedLoopback, BlockedPrivate, BlockedLinkLocal, BlockedMulticast, BlockedSpecial,
}
