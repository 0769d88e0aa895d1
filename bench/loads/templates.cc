// SPDX-License-Identifier: GPL-2.0
// Instantiates many templates, as a load for the compiler.
#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

template <int N> struct Table {
	std::map<std::string, std::vector<std::unique_ptr<std::string>>> rows;

	void fill()
	{
		for (int i = 0; i < N; i++)
			rows["key " + std::to_string(i)].push_back(std::make_unique<std::string>("row"));
		Table<N - 1>().fill();
	}
};

template <> struct Table<0> {
	void fill() {}
};

int main()
{
	Table<12>().fill();
	std::ostringstream text;
	text << "done";
	std::cout << text.str() << std::endl;
}
