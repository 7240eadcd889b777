package webhook

// Payload is the data of one event: the public wire contract. Its struct lives
// here, in the catalogue's package, so that who publishes depends on the
// contract and not the other way round.
type Payload interface {
	// Type is the event's type.
	Type() Type
	// SubjectID is the id of what the event is about; the kind of thing is the
	// catalogue's.
	SubjectID() string
	// Customer is the one customer the event is for, or "" for all.
	Customer() string
}

// forAll is embedded by payloads that are for every customer.
type forAll struct{}

func (forAll) Customer() string { return "" }

// Attributes are what subscriptions' filters look at, as they were when the
// event was committed: attribute → values, an event matches any of them. They
// are stored with the event and never sent.
type Attributes map[string][]string

func (a Attributes) filterAttributes() Attributes { return a }

// ProgramCreated says that a program was ingested for the first time.
type ProgramCreated struct {
	forAll
	Attributes      `json:"-"`
	UnifiedID       string  `json:"unified_id"`
	PrimaryName     string  `json:"primary_name"`
	AuthorityLevel  *string `json:"authority_level"`    // national, prefecture, municipality; null: not known
	Prefecture      *string `json:"prefecture"`         // null: none, or more than one
	AmountMaxManYen *int64  `json:"amount_max_man_yen"` // 10,000 yen; null: not stated
	SourceURL       string  `json:"source_url"`
}

// ProgramUpdated says that an ingested program's source fields changed.
type ProgramUpdated struct {
	forAll
	Attributes       `json:"-"`
	UnifiedID        string   `json:"unified_id"`
	ChangedFields    []string `json:"changed_fields"` // sorted, never empty
	PreviousChecksum string   `json:"previous_checksum"`
	CurrentChecksum  string   `json:"current_checksum"`
}

// ProgramMatchingFilter says that a new program matches a saved filter.
type ProgramMatchingFilter struct {
	Attributes    `json:"-"`
	CustomerID    string   `json:"-"` // program events carry no customer
	UnifiedID     string   `json:"unified_id"`
	FilterID      string   `json:"filter_id"`
	MatchedFields []string `json:"matched_fields"` // the filter's attributes, sorted
}

// AdoptionPublished says that adoption records were added for a program and year.
type AdoptionPublished struct {
	forAll
	Attributes  `json:"-"`
	AdoptionID  string `json:"adoption_id"`
	ProgramID   string `json:"program_id"`
	Year        int    `json:"year"`
	CountAdded  int64  `json:"count_added"`
	EvidenceURL string `json:"evidence_url"`
}

// ExclusionRuleAdded says that a rule names a program that the customer tracks.
type ExclusionRuleAdded struct {
	Attributes `json:"-"`
	CustomerID string `json:"-"`
	RuleID     string `json:"rule_id"`
	ProgramA   string `json:"program_a"`
	ProgramB   string `json:"program_b"`
	Kind       string `json:"kind"`
	Severity   string `json:"severity"`
}

// TierQuotaWarning says that the day's usage crossed 80 % of the daily limit.
type TierQuotaWarning struct {
	CustomerID string `json:"customer_id"`
	Tier       string `json:"tier"`
	UsageToday int64  `json:"usage_today"` // calls
	Limit      int64  `json:"limit"`       // calls a day
	ResetsAt   string `json:"resets_at"`   // the next midnight, with its offset
}

// UsageFinalized says that a usage record was closed with its final cost.
type UsageFinalized struct {
	CustomerID    string `json:"customer_id"`
	UsageRecordID string `json:"usage_record_id"`
	PeriodStart   string `json:"period_start"`
	PeriodEnd     string `json:"period_end"`
	Currency      string `json:"currency"`
	FinalCost     string `json:"final_cost"` // decimal
}

// CreditAdjustmentPosted says that an entry was posted to the customer's
// credit ledger.
type CreditAdjustmentPosted struct {
	CustomerID   string `json:"customer_id"`
	AdjustmentID string `json:"adjustment_id"`
	Kind         string `json:"kind"` // top_up, refund, correction …
	Currency     string `json:"currency"`
	Amount       string `json:"amount"`        // decimal, negative where credit is taken
	BalanceAfter string `json:"balance_after"` // decimal
	SourceID     string `json:"source_id"`     // what to key the business effect by
}

// BudgetThresholdCrossed says that spend crossed a share of the budget.
type BudgetThresholdCrossed struct {
	CustomerID       string `json:"customer_id"`
	Period           string `json:"period"`
	Currency         string `json:"currency"`
	ThresholdPercent int    `json:"threshold_percent"`
	Spend            string `json:"spend"` // decimal
	Limit            string `json:"limit"` // decimal
}

// KeyStatusChanged says that a model key was created, frozen, thawed or revoked.
type KeyStatusChanged struct {
	CustomerID     string `json:"customer_id"`
	KeyID          string `json:"key_id"`
	PreviousStatus string `json:"previous_status"` // "" for a new key
	CurrentStatus  string `json:"current_status"`
	Version        int64  `json:"version"` // rises with each change: apply only what is newer
}

// CustomerProvisioned says that provisioning is complete.
type CustomerProvisioned struct {
	CustomerID string `json:"customer_id"`
	GroupID    string `json:"group_id"`
	KeyID      string `json:"key_id"`
	Currency   string `json:"currency"`
	SpendLimit string `json:"spend_limit"` // decimal
}

// SubscriptionDisabled says that the service disabled one of the customer's
// subscriptions; it goes to the customer's other ones.
type SubscriptionDisabled struct {
	CustomerID     string `json:"-"`
	SubscriptionID string `json:"subscription_id"`
	URLOrigin      string `json:"url_origin"` // scheme, host and port
	DisabledReason string `json:"disabled_reason"`
	DisabledAt     string `json:"disabled_at"`
}

// Test is the test ping: no data, never stored as an event.
type Test struct{}

// The types of the payloads.
func (ProgramCreated) Type() Type         { return TypeProgramCreated }
func (ProgramUpdated) Type() Type         { return TypeProgramUpdated }
func (ProgramMatchingFilter) Type() Type  { return TypeProgramMatchingFilter }
func (AdoptionPublished) Type() Type      { return TypeAdoptionPublished }
func (ExclusionRuleAdded) Type() Type     { return TypeExclusionRuleAdded }
func (TierQuotaWarning) Type() Type       { return TypeTierQuotaWarning }
func (UsageFinalized) Type() Type         { return TypeUsageFinalized }
func (CreditAdjustmentPosted) Type() Type { return TypeCreditAdjustmentPosted }
func (BudgetThresholdCrossed) Type() Type { return TypeBudgetThresholdCrossed }
func (KeyStatusChanged) Type() Type       { return TypeKeyStatusChanged }
func (CustomerProvisioned) Type() Type    { return TypeCustomerProvisioned }
func (SubscriptionDisabled) Type() Type   { return TypeSubscriptionDisabled }
func (Test) Type() Type                   { return TypeTest }

// The ids of their subjects.
func (p ProgramCreated) SubjectID() string         { return p.UnifiedID }
func (p ProgramUpdated) SubjectID() string         { return p.UnifiedID }
func (p ProgramMatchingFilter) SubjectID() string  { return p.UnifiedID }
func (p AdoptionPublished) SubjectID() string      { return p.AdoptionID }
func (p ExclusionRuleAdded) SubjectID() string     { return p.RuleID }
func (p TierQuotaWarning) SubjectID() string       { return p.CustomerID }
func (p UsageFinalized) SubjectID() string         { return p.UsageRecordID }
func (p CreditAdjustmentPosted) SubjectID() string { return p.AdjustmentID }
func (p BudgetThresholdCrossed) SubjectID() string { return p.CustomerID + ":" + p.Period }
func (p KeyStatusChanged) SubjectID() string       { return p.KeyID }
func (p CustomerProvisioned) SubjectID() string    { return p.CustomerID }
func (p SubscriptionDisabled) SubjectID() string   { return p.SubscriptionID }
func (Test) SubjectID() string                     { return "" }

// The customers that the scoped ones are for.
func (p ProgramMatchingFilter) Customer() string  { return p.CustomerID }
func (p ExclusionRuleAdded) Customer() string     { return p.CustomerID }
func (p TierQuotaWarning) Customer() string       { return p.CustomerID }
func (p UsageFinalized) Customer() string         { return p.CustomerID }
func (p CreditAdjustmentPosted) Customer() string { return p.CustomerID }
func (p BudgetThresholdCrossed) Customer() string { return p.CustomerID }
func (p KeyStatusChanged) Customer() string       { return p.CustomerID }
func (p CustomerProvisioned) Customer() string    { return p.CustomerID }
func (p SubscriptionDisabled) Customer() string   { return p.CustomerID }
func (Test) Customer() string                     { return "" }
