// A library that does nothing, for library_test.cpp.
extern "C" void simplescale_empty() {}
