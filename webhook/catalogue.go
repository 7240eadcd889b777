package webhook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"jpintel/store"
)

// Type names an event type.
type Type string

// The event types. What each means is in the catalogue below.
const (
	TypeProgramCreated         Type = "program.created"
	TypeProgramUpdated         Type = "program.updated"
	TypeProgramMatchingFilter  Type = "program.matching_filter"
	TypeAdoptionPublished      Type = "adoption.published"
	TypeExclusionRuleAdded     Type = "exclusion_rule.added"
	TypeTierQuotaWarning       Type = "tier.quota.warning"
	TypeUsageFinalized         Type = "usage.finalized"
	TypeCreditAdjustmentPosted Type = "credit.adjustment_posted"
	TypeBudgetThresholdCrossed Type = "budget.threshold_crossed"
	TypeKeyStatusChanged       Type = "key.status_changed"
	TypeCustomerProvisioned    Type = "customer.provisioned"
	TypeSubscriptionDisabled   Type = "webhook.subscription_disabled"
	TypeTest                   Type = "webhook.test" // the test ping; cannot be subscribed to
)

// Scope says whom an event of a type is for.
type Scope string

// The scopes.
const (
	ScopeAll      Scope = "all"      // every customer; the data names none
	ScopeCustomer Scope = "customer" // the one customer that the event belongs to
	ScopeNone     Scope = "none"     // never an event: the test ping
)

// schemaVersion is the version of every data schema. New optional fields keep
// it; anything incompatible is a new type.
const schemaVersion = "1"

// EventType is one entry of the catalogue. The API, the documentation, the
// validation at publish and the dashboard are all made from it.
type EventType struct {
	Type        Type            `json:"type"`
	Scope       Scope           `json:"scope"`
	Subject     string          `json:"subject_type"`
	Description string          `json:"description"` // the committed transition that emits it
	Crossing    string          `json:"crossing_rule,omitempty"`
	Sensitivity string          `json:"data_sensitivity"`
	Attributes  []string        `json:"filter_attributes"`
	Schema      json.RawMessage `json:"schema"`  // JSON Schema (2020-12) of data
	Example     json.RawMessage `json:"example"` // of data

	fields fields
	// subject names the members of data that are the subject's id, joined by ":".
	subject []string
	example Payload
	compile func() (*jsonschema.Schema, error)
}

// Sensitivity of data.
const (
	sensitivityPublic   = "public: no customer and no personal data"
	sensitivityCustomer = "customer: the customer's own account only"
)

const crossingRule = "emitted in the transaction in which value×100 reaches limit×percent from below, whether the value or the limit changed; " +
	"once per customer, meter, period, limit version and threshold; falling below does not re-arm it"

var programAttributes = []string{"authority_level", "prefecture", "target_type", "unified_id"}

// order is the catalogue as it is shown.
var order = []*EventType{
	{
		Type: TypeProgramCreated, Scope: ScopeAll, Subject: "program",
		Description: "A program is ingested for the first time.",
		Sensitivity: sensitivityPublic, Attributes: programAttributes,
		subject: []string{"unified_id"},
		fields: fields{
			{"unified_id", text, "The program's id."},
			{"primary_name", text, "Its name."},
			{"authority_level", nullable(oneOf("national", "prefecture", "municipality")), "Whose program it is; null where that is not known."},
			{"prefecture", nullable(text), "The one prefecture; null where there is none or more than one."},
			{"amount_max_man_yen", nullable(count), "The most that is granted, in 10,000 yen; null where none is stated."},
			{"source_url", anyText, "Where the program is published; empty where that is not known."},
		},
		example: ProgramCreated{UnifiedID: "UNI-7f3c21", PrimaryName: "省エネ設備更新補助金", AuthorityLevel: new("prefecture"), Prefecture: new("奈良県"),
			AmountMaxManYen: new(int64(300)), SourceURL: "https://www.jgrants-portal.go.jp/subsidy/7f3c21"},
	},
	{
		Type: TypeProgramUpdated, Scope: ScopeAll, Subject: "program",
		Description: "An ingested program's source fields differ from the stored ones.",
		Sensitivity: sensitivityPublic, Attributes: programAttributes,
		subject: []string{"unified_id"},
		fields: fields{
			{"unified_id", text, "The program's id."},
			{"changed_fields", texts, "The names of the source fields that differ, sorted."},
			{"previous_checksum", text, "The checksum before: that of the event before this one."},
			{"current_checksum", text, "The checksum now. Compare it before you apply an older event."},
		},
		example: ProgramUpdated{UnifiedID: "UNI-7f3c21", ChangedFields: []string{"amount_max_man_yen", "application_window"},
			PreviousChecksum: "8c1f0d3be2a94c75", CurrentChecksum: "f2a7716c05d9b3e8"},
	},
	{
		Type: TypeProgramMatchingFilter, Scope: ScopeCustomer, Subject: "program",
		Description: "A new program matches a saved filter of the customer.",
		Sensitivity: sensitivityPublic, Attributes: programAttributes,
		subject: []string{"unified_id"},
		fields: fields{
			{"unified_id", text, "The program's id."},
			{"filter_id", text, "The saved filter that it matches."},
			{"matched_fields", texts, "The filter's attributes, sorted."},
		},
		example: ProgramMatchingFilter{CustomerID: "cus_example", UnifiedID: "UNI-7f3c21", FilterID: "flt_01HX9Z2K7V3B4C5D6E7F8G9H0J", MatchedFields: []string{"prefecture", "target_type"}},
	},
	{
		Type: TypeAdoptionPublished, Scope: ScopeAll, Subject: "adoption",
		Description: "Adoption records (gBizINFO) were added for a program and year.",
		Sensitivity: sensitivityPublic, Attributes: []string{"authority_level", "prefecture", "program_id", "target_type", "unified_id", "year"},
		subject: []string{"adoption_id"},
		fields: fields{
			{"adoption_id", text, "The id of this set of records."},
			{"program_id", text, "The program's id."},
			{"year", count, "The year of adoption."},
			{"count_added", count, "How many records were added."},
			{"evidence_url", anyText, "Where they are published; empty where that is not known."},
		},
		example: AdoptionPublished{AdoptionID: "ADP-2026-0042", ProgramID: "UNI-7f3c21", Year: 2026, CountAdded: 42, EvidenceURL: "https://info.gbiz.go.jp/example"},
	},
	{
		Type: TypeExclusionRuleAdded, Scope: ScopeCustomer, Subject: "exclusion_rule",
		Description: "A rule was added that names a program which the customer tracks, on either side.",
		Sensitivity: sensitivityPublic, Attributes: []string{"kind", "severity"},
		subject: []string{"rule_id"},
		fields: fields{
			{"rule_id", text, "The rule's id."},
			{"program_a", text, "One program."},
			{"program_b", text, "The other program."},
			{"kind", text, "What kind of rule, such as mutex."},
			{"severity", text, "How strict it is, such as block."},
		},
		example: ExclusionRuleAdded{CustomerID: "cus_example", RuleID: "ER-118", ProgramA: "UNI-7f3c21", ProgramB: "UNI-90ab44", Kind: "mutex", Severity: "block"},
	},
	{
		Type: TypeTierQuotaWarning, Scope: ScopeCustomer, Subject: "customer",
		Description: "The day's usage crosses 80 % of the daily limit.", Crossing: crossingRule,
		Sensitivity: sensitivityCustomer,
		subject:     []string{"customer_id"},
		fields: fields{
			{"customer_id", text, "You."},
			{"tier", oneOf("free", "paid"), "Your tier."},
			{"usage_today", count, "Calls today."},
			{"limit", count, "Calls a day."},
			{"resets_at", text, "The next midnight, with its offset."},
		},
		example: TierQuotaWarning{CustomerID: "cus_example", Tier: "paid", UsageToday: 8120, Limit: 10000, ResetsAt: "2026-05-15T00:00:00+09:00"},
	},
	{
		Type: TypeUsageFinalized, Scope: ScopeCustomer, Subject: "usage_record",
		Description: "A usage record is closed with its final cost: a day, or what was told of a day after that was closed. Records of one day add up.",
		Sensitivity: sensitivityCustomer,
		subject:     []string{"usage_record_id"},
		fields: fields{
			{"customer_id", text, "You."},
			{"usage_record_id", text, "The record."},
			{"period_start", text, "The first instant of its day, in the service's time zone, with the offset."},
			{"period_end", text, "The end of the day, exclusive."},
			{"currency", currency, "ISO 4217."},
			{"final_cost", money, "What its requests have cost, exact: a decimal string."},
		},
		example: UsageFinalized{CustomerID: "cus_example", UsageRecordID: "usage_9182", PeriodStart: "2026-10-15T00:00:00Z", PeriodEnd: "2026-10-16T00:00:00Z", Currency: "USD", FinalCost: "1.274800"},
	},
	{
		Type: TypeCreditAdjustmentPosted, Scope: ScopeCustomer, Subject: "ledger_entry",
		Description: "An entry is posted to the customer's credit ledger: a top-up, a refund, a correction.",
		Sensitivity: sensitivityCustomer,
		subject:     []string{"adjustment_id"},
		fields: fields{
			{"customer_id", text, "You."},
			{"adjustment_id", text, "The ledger entry."},
			{"kind", text, "What it is, such as top_up or refund."},
			{"currency", currency, "ISO 4217."},
			{"amount", money, "A decimal string, negative where credit is taken."},
			{"balance_after", money, "The balance with this entry."},
			{"source_id", text, "What caused it. Key your own booking by this id."},
		},
		example: CreditAdjustmentPosted{CustomerID: "cus_example", AdjustmentID: "led_5521", Kind: "top_up", Currency: "USD", Amount: "25.00", BalanceAfter: "125.00", SourceID: "pi_example"},
	},
	{
		Type: TypeBudgetThresholdCrossed, Scope: ScopeCustomer, Subject: "budget",
		Description: "Spend in the budget period crosses a threshold (80 %, 100 %).", Crossing: crossingRule,
		Sensitivity: sensitivityCustomer,
		subject:     []string{"customer_id", "period"},
		fields: fields{
			{"customer_id", text, "You."},
			{"period", text, "The month, such as 2026-10, in the service's time zone."},
			{"currency", currency, "ISO 4217."},
			{"threshold_percent", count, "80 or 100."},
			{"spend", money, "Spend in the month so far, with what is not final yet."},
			{"limit", money, "The month's spend limit."},
		},
		example: BudgetThresholdCrossed{CustomerID: "cus_example", Period: "2026-10", Currency: "USD", ThresholdPercent: 80, Spend: "80.125000", Limit: "100.00"},
	},
	{
		Type: TypeKeyStatusChanged, Scope: ScopeCustomer, Subject: "model_key",
		Description: "A model key is created, frozen, thawed or revoked.",
		Sensitivity: sensitivityCustomer,
		subject:     []string{"key_id"},
		fields: fields{
			{"customer_id", text, "You."},
			{"key_id", text, "The model key; never the key itself."},
			{"previous_status", anyText, "The status before; empty for a new key."},
			{"current_status", text, "The status now."},
			{"version", count, "Rises with each change: apply only what is newer."},
		},
		example: KeyStatusChanged{CustomerID: "cus_example", KeyID: "key_77", PreviousStatus: "active", CurrentStatus: "frozen", Version: 3},
	},
	{
		Type: TypeCustomerProvisioned, Scope: ScopeCustomer, Subject: "customer",
		Description: "Provisioning is complete: group, key and limit are in place.",
		Sensitivity: sensitivityCustomer,
		subject:     []string{"customer_id"},
		fields: fields{
			{"customer_id", text, "You."},
			{"group_id", text, "The group that was made for you."},
			{"key_id", text, "Your first model key; never the key itself."},
			{"currency", currency, "ISO 4217."},
			{"spend_limit", money, "The spend limit that is set."},
		},
		example: CustomerProvisioned{CustomerID: "cus_example", GroupID: "grp_12", KeyID: "key_77", Currency: "USD", SpendLimit: "100.00"},
	},
	{
		Type: TypeSubscriptionDisabled, Scope: ScopeCustomer, Subject: "webhook_subscription",
		Description: "The service disabled one of the customer's subscriptions; goes to the customer's other ones.",
		Sensitivity: sensitivityCustomer,
		subject:     []string{"subscription_id"},
		fields: fields{
			{"subscription_id", text, "The subscription that was disabled. The envelope's subscription_id is the one that this event goes to."},
			{"url_origin", text, "Scheme, host and port of its URL."},
			{"disabled_reason", text, "Why."},
			{"disabled_at", text, "When, with its offset."},
		},
		example: SubscriptionDisabled{CustomerID: "cus_example", SubscriptionID: "sub_01HX9Z2K7V3B4C5D6E7F8G9H0J", URLOrigin: "https://hooks.example.com",
			DisabledReason: "410_gone", DisabledAt: "2026-05-14T09:00:00+09:00"},
	},
	{
		Type: TypeTest, Scope: ScopeNone, Subject: "webhook_subscription",
		Description: "The test ping. It cannot be subscribed to and is not in the feed.",
		Sensitivity: sensitivityPublic, fields: fields{}, example: Test{},
	},
}

var catalogue = func() map[Type]*EventType {
	byType := map[Type]*EventType{}
	for _, e := range order {
		e.Schema = e.fields.schema(e.Type)
		example, err := marshal(e.example)
		if err != nil {
			panic(err) // unreachable: the examples are plain structs
		}
		e.Example = example
		if e.Attributes == nil {
			e.Attributes = []string{}
		}
		e.compile = sync.OnceValues(func() (*jsonschema.Schema, error) { return compileSchema(string(e.Type), e.Schema) })
		byType[e.Type] = e
	}
	return byType
}()

// EventTypes returns the catalogue: every type that can be subscribed to, in
// the order of the documentation.
func EventTypes() []EventType {
	var all []EventType
	for _, e := range order {
		if e.Scope != ScopeNone {
			all = append(all, *e)
		}
	}
	return all
}

// GetEventType returns one entry of the catalogue, the test ping's too.
func GetEventType(t Type) (EventType, error) {
	e, ok := catalogue[t]
	if !ok {
		return EventType{}, store.Errorf(store.CodeNotFound, "event type %q not found; GET /v1/event-types lists them", t)
	}
	return *e, nil
}

// validateTypes checks the events of a subscription and returns them sorted,
// each once.
func validateTypes(types []Type) ([]Type, error) {
	if len(types) == 0 {
		return nil, store.Errorf(store.CodeInvalid, "events: want at least one event type")
	}
	for _, t := range types {
		if e, ok := catalogue[t]; !ok || e.Scope == ScopeNone {
			return nil, store.Errorf(store.CodeInvalid, "events: unknown event type %q; GET /v1/event-types lists them", t)
		}
	}
	types = slices.Clone(types)
	slices.Sort(types)
	return slices.Compact(types), nil
}

// validate checks data against the type's schema. Its error names the place.
func (e *EventType) validate(data []byte) error {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		return store.Errorf(store.CodeInvalid, "data: not JSON: %v", err)
	}
	return e.check(value)
}

// check is validate for data that has been read already.
func (e *EventType) check(value any) error {
	schema, err := e.compile()
	if err != nil {
		return fmt.Errorf("compiling the schema: %w", err)
	}
	err = schema.Validate(value)
	if failed, ok := errors.AsType[*jsonschema.ValidationError](err); ok {
		return store.Errorf(store.CodeInvalid, "%s", firstFault(failed))
	}
	return err
}
