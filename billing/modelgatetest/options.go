package modelgatetest

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"time"
)

// Profile is a way to answer the questions that providers answer differently:
// see dialects.
type Profile string

// The profiles.
const (
	ProfileDefault Profile = "default" // the contract's own
	ProfileStripe  Profile = "stripe"  // the key is optional, a conflict is a 400
	ProfileIETF    Profile = "ietf"    // the Internet-Draft's: problem documents, a conflict is a 422
	ProfileStrict  Profile = "strict"  // a key's creation is replayed as 200, without the secret
)

// RefMode says what a second group with one external_ref is.
type RefMode string

// The modes.
const (
	RefNone           RefMode = "none"            // a group like any other: nothing protects the caller
	RefConflict       RefMode = "conflict"        // 409 external_ref_conflict with existing_id
	RefReturnExisting RefMode = "return_existing" // 200 with the group that is there
)

// SecretMode says whether a replay of a key's creation shows the secret.
type SecretMode string

// The modes.
const (
	SecretNever           SecretMode = "never"
	SecretWithinRetention SecretMode = "within_retention"
)

// IdemScope is the name space of Idempotency-Keys.
type IdemScope string

// The scopes.
const (
	ScopeAccount    IdemScope = "account"     // one name space over all methods and paths
	ScopeMethodPath IdemScope = "method_path" // one per method and path
)

// DevToken is the partner's token unless the options name another.
const DevToken = "mgp_dev_0123456789abcdef"

// Options are the knobs. The zero value is the contract as it is written.
type Options struct {
	Token           string     // of the partner, mgp_…; default DevToken
	Profile         Profile    // default ProfileDefault
	ExternalRefMode RefMode    // default RefNone
	NoRefFilter     bool       // the parameter external_ref of lists is taken, and ignored
	SecretOnReplay  SecretMode // default SecretNever
	IdemScope       IdemScope  // default ScopeAccount
	// ListLag is how late transactions appear in their list, AuditLag the same of
	// audit events. The contract allows 60 s. Other lists are never late; the fault
	// stale_read makes them.
	ListLag, AuditLag time.Duration
	Currency          string           // of the wallet and all groups; default USD
	WalletBalance     string           // of the partner at the start; default 1000000.00
	MinTopUp          string           // default 1.00
	MaxLimit          string           // the largest spend_limit; default 1000000.00
	MaxKeys           int              // of a group, revoked ones apart; default 10
	Models            []string         // that groups may name; nil: anything that looks like a model's name
	Now               func() time.Time // the clock that Advance adds to; default time.Now
}

func (o Options) withDefaults() Options {
	o.Token = cmp.Or(o.Token, DevToken)
	o.Profile = cmp.Or(o.Profile, ProfileDefault)
	o.ExternalRefMode = cmp.Or(o.ExternalRefMode, RefNone)
	o.SecretOnReplay = cmp.Or(o.SecretOnReplay, SecretNever)
	o.IdemScope = cmp.Or(o.IdemScope, ScopeAccount)
	o.Currency = cmp.Or(o.Currency, "USD")
	o.WalletBalance = cmp.Or(o.WalletBalance, "1000000.00")
	o.MinTopUp = cmp.Or(o.MinTopUp, "1.00")
	o.MaxLimit = cmp.Or(o.MaxLimit, "1000000.00")
	o.MaxKeys = cmp.Or(o.MaxKeys, 10)
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

var (
	tokenForm    = regexp.MustCompile(`^mgp_[A-Za-z0-9_-]{4,128}$`)
	currencyForm = regexp.MustCompile(`^[A-Z]{3}$`)
	modelForm    = regexp.MustCompile(`^[a-z0-9][a-z0-9._:/-]{0,99}$`)
)

// Validate says what is wrong with options; those that are not set are right.
func (o Options) Validate() error {
	o = o.withDefaults()
	for _, money := range []struct{ name, text string }{{"wallet_balance", o.WalletBalance}, {"min_top_up", o.MinTopUp}, {"max_limit", o.MaxLimit}} {
		if _, ok := parseMoney(money.text, false); !ok {
			return fmt.Errorf("%s is %q, want money like 25.00", money.name, money.text)
		}
	}
	switch {
	case !tokenForm.MatchString(o.Token):
		return fmt.Errorf("token: want mgp_ and at least 4 letters and digits")
	case dialects[o.Profile] == nil:
		return fmt.Errorf("profile is %q, want default, stripe, ietf or strict", o.Profile)
	case !slices.Contains([]RefMode{RefNone, RefConflict, RefReturnExisting}, o.ExternalRefMode):
		return fmt.Errorf("external_ref_mode is %q, want none, conflict or return_existing", o.ExternalRefMode)
	case o.SecretOnReplay != SecretNever && o.SecretOnReplay != SecretWithinRetention:
		return fmt.Errorf("secret_on_replay is %q, want never or within_retention", o.SecretOnReplay)
	case o.IdemScope != ScopeAccount && o.IdemScope != ScopeMethodPath:
		return fmt.Errorf("idem_scope is %q, want account or method_path", o.IdemScope)
	case o.ListLag < 0 || o.AuditLag < 0:
		return fmt.Errorf("list_lag and audit_lag: want 0s or longer")
	case !currencyForm.MatchString(o.Currency):
		return fmt.Errorf("currency is %q, want three capital letters", o.Currency)
	case o.MaxKeys < 0:
		return fmt.Errorf("max_keys is %d, want 1 or more", o.MaxKeys)
	}
	return nil
}
