"""Generated from the .proto files beside it by `make proto`; never edited."""
